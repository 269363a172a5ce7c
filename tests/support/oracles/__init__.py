# SPDX-License-Identifier: Apache-2.0
"""What says which result is right, and what draws or forges input."""
