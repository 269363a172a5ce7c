# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the rows of tables: snapshots, Keras files, checkpoints."""

__all__ = []
