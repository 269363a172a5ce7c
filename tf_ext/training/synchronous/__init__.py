# SPDX-License-Identifier: Apache-2.0
"""Training on synchronous workers."""

__all__: list[str] = []
