# SPDX-License-Identifier: Apache-2.0
"""Ops on what workers send each other in synchronous training."""

__all__: list[str] = []
