# SPDX-License-Identifier: Apache-2.0
"""Cases that several tests go through, and what checks them."""
