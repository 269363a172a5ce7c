# SPDX-License-Identifier: Apache-2.0
"""Models that hold tables: `tf_ext.Model`."""

__all__: list[str] = []
