# SPDX-License-Identifier: Apache-2.0
"""A chief that trains in a network of its own until it is told to end.

Usage: cut_chief_program.py NAMESPACE STOP_FILE CLUSTER

It prints and ends as `cut_training.train` does, for a lost server.
"""

import json
import sys

from clusters import networks

if __name__ == "__main__":
    # Before there are threads, which stay where they are.
    networks.enter(sys.argv[1])

from clusters import cut_training

from tf_ext import distribute


def main():
    cut_training.train(
        distribute.parameter_server_strategy(json.loads(sys.argv[3])),
        cut_training.UntilTold(sys.argv[2]),
        distribute.ServerLostError,
    )


if __name__ == "__main__":
    main()
