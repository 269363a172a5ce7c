# SPDX-License-Identifier: Apache-2.0
"""The lag of a stream in logs."""

import json
import time
import types
from unittest import mock

from absl.testing import absltest

import tf_ext
from tf_ext.callbacks import stream_logs
from tf_ext.data.progress import BatchNote


def _lag(batches):
    """What a worker tells of [(records, seconds late or None)]."""
    progress = tf_ext.data.StreamProgress()
    iteration = progress.begin({}, [])
    for records, late in batches:
        event = None if late is None else time.time() - late
        progress.note(iteration, BatchNote({}, records, event, event, {}))
    progress.advance(len(batches))
    return json.loads(json.dumps(progress.lag()))


class StreamLogsTest(absltest.TestCase):
    def logs(self, *workers):
        """What the callback logs for workers with such batches."""
        processes = types.SimpleNamespace(
            gather_json=lambda _: [_lag(batches) for batches in workers]
        )
        callback = tf_ext.callbacks.StreamLogs(tf_ext.data.StreamProgress())
        callback.set_model(object())
        logs = {}
        with mock.patch.object(
            stream_logs,
            "regime_of_model",
            return_value=types.SimpleNamespace(processes=processes),
        ):
            callback.on_epoch_end(0, logs)
        return logs

    def test_a_mean_over_the_batches_of_all_workers(self):
        logs = self.logs([(4, 100), (4, 400), (1, 100)], [(2, 1000)], [])
        self.assertEqual(logs["stream_records"], 11)
        self.assertAlmostEqual(logs["stream_lag"], 1600 / 4, delta=60)
        self.assertAlmostEqual(logs["stream_max_lag"], 1000, delta=60)

    def test_batches_without_times_do_not_count(self):
        logs = self.logs([(4, 100), (4, None)], [(2, None)])
        self.assertEqual(logs["stream_records"], 10)
        self.assertAlmostEqual(logs["stream_lag"], 100, delta=60)

    def test_no_lag_without_times(self):
        self.assertEqual(
            self.logs([(4, None)], [(2, None)]), {"stream_records": 6}
        )

    def test_refuses_what_is_not_the_progress_of_a_stream(self):
        for wrong in (None, 1, tf_ext.data.StreamProgress):
            with self.assertRaisesRegex(
                ValueError,
                "Argument `progress` of StreamLogs must be a tf_ext.data",
            ):
                tf_ext.callbacks.StreamLogs(wrong)


if __name__ == "__main__":
    absltest.main()
