# SPDX-License-Identifier: Apache-2.0
"""Ops that write tables to files, and read them."""

__all__: list[str] = []
