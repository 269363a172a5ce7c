# SPDX-License-Identifier: Apache-2.0
"""A worker or server of a cluster in a network of its own.

Usage: cut_server_program.py NAMESPACE, and the arguments of
tf_ext.distribute.server.
"""

import sys

from clusters import networks

if __name__ == "__main__":
    # Before there are threads, which stay where they are.
    networks.enter(sys.argv[1])

from tf_ext.distribute import server

if __name__ == "__main__":
    server.main(sys.argv[2:])
