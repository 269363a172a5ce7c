# SPDX-License-Identifier: Apache-2.0
"""The in-tree PEP 517 backend and the compilation of the C++ parts."""
