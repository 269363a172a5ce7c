# SPDX-License-Identifier: Apache-2.0
"""A Redis: at TF_EXT_REDIS=host:port, or Debian's redis-server."""

import os
import shutil
import subprocess
import time

import redis

from tf_ext.distribute.ports import free_ports


def missing():
    """Why there is none; None if there is one."""
    if os.environ.get("TF_EXT_REDIS") or shutil.which("redis-server"):
        return None
    return "TF_EXT_REDIS names no Redis, and there is no redis-server."


class RedisServer:
    """A server, which `close` ends; its data survive `kill` and `start`.

    Attributes:
      url: string.
      can_be_killed: bool, whether `kill` and `start` work.
    """

    def __init__(self, folder):
        address = os.environ.get("TF_EXT_REDIS")
        self.can_be_killed = not address
        self._process = None
        if not address:
            [self._port] = free_ports(1)
            address = f"127.0.0.1:{self._port}"
        self._folder = folder
        self.url = f"redis://{address}/0"
        self.client = redis.Redis.from_url(self.url)
        if self.can_be_killed:
            self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self._port)),
                *("--bind", "127.0.0.1", "--dir", self._folder),
                *("--appendonly", "yes", "--appendfsync", "always"),
            ],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(30_000):
            try:
                self.client.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError):
                time.sleep(0.01)
        raise AssertionError("redis-server does not answer.")

    def kill(self):
        """Kills it, without notice."""
        self._process.kill()
        self._process.wait()

    def close(self):
        """Ends it, if it was started here."""
        if self._process is not None:
            self.kill()
