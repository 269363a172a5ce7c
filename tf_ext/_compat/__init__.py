# SPDX-License-Identifier: Apache-2.0
"""What tf_ext uses of TensorFlow and Keras beyond their public API.

Private attributes, overridden hooks, stack frames, classes changed at run time,
texts of errors: each use is one function here, which says what it is for and
with which versions it was tested. `tests/compat` has a test of each that fails
when it stops working or is no longer needed. Elsewhere such things are refused
by `tests/project/promises_test.py`.
"""
