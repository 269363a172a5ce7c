"""Training on several machines, with parameter servers."""

from tf_ext.distribute.errors import (
    ServerLostError,
    name_lost_task,
    naming_lost_server,
)

__all__ = [
    "ServerLostError",
    "name_lost_task",
    "naming_lost_server",
]
