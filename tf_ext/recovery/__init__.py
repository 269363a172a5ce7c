# SPDX-License-Identifier: Apache-2.0
"""Recovery points: what training continues from, and when it ends."""

__all__: list[str] = []
