# SPDX-License-Identifier: Apache-2.0
"""Ops that passes over graphs put in or look for."""

__all__: list[str] = []
