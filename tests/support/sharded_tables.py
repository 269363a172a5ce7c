"""Tables with several shards in one process, and the bytes of their rows."""

from unittest import mock

from tf_ext.regimes import LocalRegime, Placement


def shards_on(devices):
    """A context in which tables have a shard on each of the devices."""
    return mock.patch.object(
        LocalRegime, "placement", lambda _: Placement(devices)
    )


def bytes_of_rows(table):
    """`{sign: bytes of all fields}`."""
    signs, fields = table.export_rows()
    return {
        sign: tuple(fields[name][i].tobytes() for name in fields)
        for i, sign in enumerate(signs.tolist())
    }
