# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine."""

import pathlib
import random
import socket

_FIRST_PORT = 10240
# The range of outgoing connections' ports: such a connection could take the
# port of a killed server before it is restarted.
_OUTGOING_PORTS = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_FIRST_OUTGOING_PORT = 32768


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens at, different ones in each call.

    Args:
      count: int, how many.

    Returns:
      list of ints.

    Example:
      >>> from tf_ext.distribute import ports
      >>> len(set(ports.free_ports(3)))
      3
    """
    try:
        first_outgoing = int(_OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = _DEFAULT_FIRST_OUTGOING_PORT
    last = first_outgoing if first_outgoing > _FIRST_PORT + 1000 else 65536
    # Not the seeded generator: concurrent programs would pick the same ports.
    generator = random.SystemRandom()
    ports: set[int] = set()
    while len(ports) < count:
        port = generator.randrange(_FIRST_PORT, last)
        if why_not_free(port) is None:
            ports.add(port)
    return list(ports)


def why_not_free(port: int) -> str | None:
    """Why a port cannot be listened at, as a text; None if it can.

    Args:
      port: int.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror
    return None
