# SPDX-License-Identifier: Apache-2.0
"""Training on asynchronous workers, with parameter servers."""

__all__: list[str] = []
