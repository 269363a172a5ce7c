# SPDX-License-Identifier: Apache-2.0
"""The ops of tf_ext that exported models need, as stock TensorFlow ops."""
