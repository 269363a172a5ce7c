# SPDX-License-Identifier: Apache-2.0
"""Tables with several shards in one process, and what they hold."""

from unittest import mock

from tf_ext.regimes.local import LocalPlacement
from tf_ext.regimes.table_interface import ShardDevices
from tf_ext.tables import row_counters


def shards_on(devices):
    """A context in which tables have a shard on each of the devices."""
    return mock.patch.object(
        LocalPlacement, "shards", lambda _: ShardDevices(devices)
    )


def bytes_of_rows(table):
    """`{sign: bytes of all fields}`."""
    signs, fields = table.export_rows()
    return {
        sign: tuple(fields[name][i].tobytes() for name in fields)
        for i, sign in enumerate(signs.tolist())
    }


def counters_of(table):
    """The counters of the shards that this process accesses.

    Returns:
      `(period, {sign: count})`, as files have them.
    """
    period = int(row_counters.current_period(table.rows))
    counters = {}
    for shard in table.rows.shards:
        exported = row_counters.CounterShard(shard, period).export()
        signs, _, values = exported
        for sign, count in zip(signs.numpy(), values["count"].numpy()[:, 0]):
            assert sign not in counters, sign
            counters[int(sign)] = int(count)
    return period, counters
