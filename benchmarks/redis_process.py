# SPDX-License-Identifier: Apache-2.0
"""A Redis on this machine."""

import contextlib
import subprocess
import time

from tf_ext.distribute.ports import free_ports


@contextlib.contextmanager
def redis_at(folder):
    """`(address, client)` of a redis-server without persistence."""
    import redis

    [port] = free_ports(1)
    command = [
        *("redis-server", "--port", str(port), "--bind", "127.0.0.1"),
        *("--dir", folder, "--save", ""),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        client = redis.Redis(port=port)
        try:
            for _ in range(1000):
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0", client
        finally:
            server.kill()
