# SPDX-License-Identifier: Apache-2.0
"""Ops between raw features and combined bags, without tables."""

__all__: list[str] = []
