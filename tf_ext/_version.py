# SPDX-License-Identifier: Apache-2.0
"""The version of tf_ext: here, and for C++ in cc/core/support/version.h."""

__version__ = "0.1.0"
