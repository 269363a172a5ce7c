# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run in processes of their own."""
