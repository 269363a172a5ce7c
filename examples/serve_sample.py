# SPDX-License-Identifier: Apache-2.0
"""What the servers of serve.py answer first; needs no TensorFlow."""

# A made-up sample, to ask a model before it serves: the first request of each
# takes longest.
ONE_SAMPLE = {
    "user": ["0"],
    "item": [0],
    "campaign": [0],
    "tags": [[0]],
    "device": ["0"],
    "hour": [0],
    "price": [1.0],
}
