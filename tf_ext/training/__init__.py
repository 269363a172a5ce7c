# SPDX-License-Identifier: Apache-2.0
"""How `fit`, `evaluate` and `predict` run under each regime."""

__all__: list[str] = []
