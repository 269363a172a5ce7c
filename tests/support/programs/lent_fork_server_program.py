# SPDX-License-Identifier: Apache-2.0
"""Forks for another process, as the fork of one that has imported TensorFlow.

Arguments: the path of a socket to listen on, and that of `fork_server.py`.
"""

import runpy
import socket
import sys

address, server = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
    listener.bind(address)
    listener.listen()
    channel, _ = listener.accept()
sys.argv = [server, str(channel.detach())]
runpy.run_path(server, run_name="__main__")
