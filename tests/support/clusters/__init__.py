# SPDX-License-Identifier: Apache-2.0
"""Starts of the processes of a cluster, and of what plays one of them."""
