# SPDX-License-Identifier: Apache-2.0
"""Models, tables and columns that tests build."""
