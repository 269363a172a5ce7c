# SPDX-License-Identifier: Apache-2.0
"""Hosts with networks of their own, whose connections can be cut.

Each host is a network namespace, and all are joined by a bridge. A cut is
silent, as that of a firewall that drops packets: one of two hosts sends them to
a hardware address that nobody has.
"""

import contextlib
import ctypes
import os
import subprocess

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_PRIVATE, _MS_REC = 0x1000, 1 << 18, 0x4000
_NOBODY = "02:00:00:00:ff:ff"


def are_permitted():
    """Whether this process may make networks."""
    name = _name("try")
    try:
        made = subprocess.run(
            ["ip", "netns", "add", name], capture_output=True
        ).returncode
    except FileNotFoundError:
        return False
    if made == 0:
        _ip("netns", "del", name)
    return made == 0


def enter(namespace):
    """Moves a process that has one thread into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        _check(libc.setns(file.fileno(), _CLONE_NEWNET))


def take_host_names(path):
    """Gives a process that has one thread a file in place of /etc/hosts."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(None, b"/", None, _MS_PRIVATE | _MS_REC, None))
    file = os.fsencode(path)
    _check(libc.mount(file, b"/etc/hosts", None, _MS_BIND, None))


def _check(result):
    """Raises the error of a function of the C library."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Network:
    """Hosts that reach each other, in a `with` statement.

    Args:
      hosts: int, how many.

    Attributes:
      namespaces: list of strings, a host each, for `enter`.
      addresses: list of strings, their IPv4 addresses.
    """

    def __init__(self, hosts):
        self._bridge = _name("bridge")
        self.namespaces = [_name(host) for host in range(hosts)]
        self.addresses = [f"10.213.0.{host + 1}" for host in range(hosts)]
        self._hardware = [f"02:00:00:00:00:{h + 1:02x}" for h in range(hosts)]
        self._cuts = set()
        self._moves = 0

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for name in (self._bridge, *self.namespaces):
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
                _ip("-n", name, "link", "set", "lo", "up")
            bridge = ["-n", self._bridge, "link"]
            _ip(*bridge, "add", "bridge", "type", "bridge")
            _ip(*bridge, "set", "bridge", "up")
            for host, name in enumerate(self.namespaces):
                port = f"port{host}"
                _ip(
                    *bridge,
                    *["add", port, "type", "veth", "peer", "name", "eth0"],
                    *["netns", name],
                )
                _ip(*bridge, "set", port, "master", "bridge", "up")
                link = ["-n", name, "link", "set", "eth0"]
                _ip(*link, "address", self._hardware[host])
                _ip(
                    *["-n", name, "address", "add"],
                    *[f"{self.addresses[host]}/24", "dev", "eth0"],
                )
                _ip(*link, "up")
            for one in range(hosts := len(self.namespaces)):
                for other in range(one + 1, hosts):
                    self.heal(one, other)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def cut(self, one, other):
        """Drops all packets between two hosts, in both directions."""
        self._cuts.add(frozenset([one, other]))
        self._send(one, other, _NOBODY)
        self._send(other, one, _NOBODY)

    def heal(self, one, other):
        """Lets packets through again."""
        self._cuts.discard(frozenset([one, other]))
        self._send(one, other, self._hardware[other])
        self._send(other, one, self._hardware[one])

    def move(self, host):
        """Gives a host an address that none has had; nothing has the old one.

        Connections to it are neither closed nor answered.
        """
        self._moves += 1
        own = ["-n", self.namespaces[host], "address"]
        _ip(*own, "del", f"{self.addresses[host]}/24", "dev", "eth0")
        self.addresses[host] = f"10.213.0.{100 + self._moves}"
        _ip(*own, "add", f"{self.addresses[host]}/24", "dev", "eth0")
        for other in range(len(self.namespaces)):
            if other != host:
                again = self.cut if self._is_cut(host, other) else self.heal
                again(host, other)

    def _is_cut(self, one, other):
        return frozenset([one, other]) in self._cuts

    def _send(self, host, to, hardware):
        _ip(
            *["-n", self.namespaces[host], "neigh", "replace"],
            *[self.addresses[to], "lladdr", hardware],
            *["dev", "eth0", "nud", "permanent"],
        )


def _name(of):
    return f"tf_ext_{os.getpid()}_{of}"


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)
