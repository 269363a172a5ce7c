# SPDX-License-Identifier: Apache-2.0
"""Ops on tables: reads, updates, evictions, counts of calls."""

__all__: list[str] = []
