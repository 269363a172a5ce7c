# SPDX-License-Identifier: Apache-2.0
"""What serve_metrics serves, and at which addresses."""

import dataclasses
import os
import re
import socket
import tempfile
import time
from unittest import mock

import metrics_client
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import ROOT
from prometheus_client.parser import text_string_to_metric_families

import tf_ext
from tf_ext._keras import keras
from tf_ext.distribute import (
    metrics,
    metrics_server,
    this_task,
    training_counts,
)
from tf_ext.ops.table.op_counts import read_counts

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("MetricsTest::test_training"),
]


def _model(name):
    ids = keras.Input([1], dtype="int64", name="id")
    column = tf_ext.feature_column.category_column("id", hashing="identity")
    table = tf_ext.SparseTable(name, dim=4)
    rows = tf_ext.layers.EmbeddingFeatures([column], table)({"id": ids})
    model = tf_ext.Model({"id": ids}, keras.layers.Dense(1)(rows))
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    return model


@dataclasses.dataclass(eq=False)
class _Publisher:
    lag_seconds: float
    version: int
    step: int
    point_time: float | None
    published_rows: int = 10
    failures: int = 1


class MetricsTest(tf.test.TestCase, parameterized.TestCase):
    def serve(self, *arguments):
        server = tf_ext.utils.serve_metrics(*arguments)
        self.addCleanup(server.close)
        return server.port

    def test_training(self):
        port = self.serve(0)
        model = _model("trained")
        x = {"id": np.arange(200)[:, None] % 50}
        model.fit(x, np.ones([200, 1]), batch_size=10, epochs=3, verbose=0)
        model.predict(x, batch_size=200, verbose=0)
        found = metrics_client.samples(port)
        self.assertNotIn(("tf_ext_steps_in_flight",), found)
        self.assertEqual(found["tf_ext_table_step", "trained"], 60)
        self.assertEqual(found["tf_ext_table_rows", "trained"], 50)
        stats = model.tables[0].stats()
        parts = [
            found["tf_ext_table_bytes", part, "trained"]
            for part in ("rows", "index", "counters")
        ]
        self.assertEqual(sum(parts), stats["bytes"] + stats["counter_bytes"])
        self.assertEqual(
            found["tf_ext_table_updated_rows_total", "trained"],
            stats["updated"],
        )
        seconds = "tf_ext_table_op_seconds"
        for op, expected in (("pull", 61), ("push", 60)):
            calls = found[f"{seconds}_count", op, "trained"]
            self.assertEqual(
                calls, found[f"{seconds}_bucket", "+Inf", op, "trained"]
            )
            self.assertEqual(calls, expected)
            self.assertGreater(found[f"{seconds}_sum", op, "trained"], 0)
        pushed = found["tf_ext_table_op_ids_total", "push", "trained"]
        self.assertEqual(pushed, stats["updated"])
        pulled = found["tf_ext_table_op_ids_total", "pull", "trained"]
        self.assertEqual(pulled, pushed + 50)
        hashing = read_counts().hashing
        self.assertEqual(found["tf_ext_hash_ids_total",], hashing.signs)
        self.assertIn(("process_resident_memory_bytes",), found)

    def test_steps_of_processes_that_train_or_schedule(self):
        port = self.serve(0)
        for steps, in_flight, names in (
            (0, None, []),
            (3, None, ["steps"]),
            (0, 0, ["in_flight", "staleness", "steps"]),
            (2, 1, ["in_flight", "staleness", "steps"]),
        ):
            counts = training_counts.TrainingCounts(
                *(steps, 4, 6.0, in_flight, 0, None, [], None, {})
            )
            read = mock.Mock(return_value=counts)
            with mock.patch.object(training_counts, "read", read):
                found = metrics_client.samples(port)
            expected = {
                "steps": {("tf_ext_steps_total",): steps},
                "in_flight": {("tf_ext_steps_in_flight",): in_flight},
                "staleness": {
                    ("tf_ext_staleness_steps_count",): 4,
                    ("tf_ext_staleness_steps_sum",): 6.0,
                },
            }
            of_training = {
                key: value
                for key, value in found.items()
                if key[0].startswith(("tf_ext_steps", "tf_ext_staleness"))
                and not key[0].endswith("_created")
            }
            wanted = {k: v for name in names for k, v in expected[name].items()}
            self.assertEqual(of_training, wanted)

    def test_both_formats(self):
        port = self.serve(0)
        _, openmetrics = metrics_client.get(port, "/metrics")
        self.assertEndsWith(openmetrics, "# EOF\n")
        _, text = metrics_client.get(port, "/metrics", accept="text/plain")
        [info] = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "tf_ext_task_info"
        ]
        self.assertEqual(info.labels["tf_ext"], tf_ext.__version__)
        self.assertEqual(info.labels["tensorflow"], tf.__version__)
        self.assertEqual(info.labels["task"], this_task.name())

    def test_the_page_has_all(self):
        page = (ROOT / "docs" / "metrics.md").read_text()
        port = self.serve(0)
        _, text = metrics_client.get(port, "/metrics", accept="text/plain")
        names = set(re.findall("^# TYPE (tf_ext_[a-z_]+)", text, re.MULTILINE))
        self.assertGreaterEqual(len(names), 12)
        for name in names:
            self.assertIn(f"`{name}`", page)

    def test_paths(self):
        port = self.serve(0)
        self.assertEqual(metrics_client.get(port, "/ready"), (200, "ready\n"))
        status, text = metrics_client.get(port, "/")
        self.assertEqual(status, 404)
        self.assertIn("/metrics and /ready", text)
        with mock.patch.dict(os.environ, TF_CONFIG="{}"):
            status, text = metrics_client.get(port, "/ready")
        self.assertEqual(status, 503)
        self.assertIn("Not ready: it has not connected", text)

    def test_ready_while_there_is_progress(self):
        port = self.serve(0)
        path = "/ready?progress_seconds="
        now, done = [1000.0], [(0, 0)]
        with (
            mock.patch.object(metrics, "work_done", lambda: done[0]),
            mock.patch.object(metrics_server.time, "monotonic", lambda: now[0]),
        ):
            # The first probe begins, whatever the process has done before.
            self.assertEqual(metrics_client.get(port, f"{path}60")[0], 200)
            now[0] += 59.0
            self.assertEqual(metrics_client.get(port, f"{path}60")[0], 200)
            now[0] += 1.0
            status, text = metrics_client.get(port, f"{path}60")
            self.assertEqual(status, 503)
            self.assertEqual(text, "Not ready: it has done nothing for 60 s.\n")
            # Other probes have other limits, or none.
            self.assertEqual(metrics_client.get(port, f"{path}90.5")[0], 200)
            self.assertEqual(metrics_client.get(port, "/ready")[0], 200)
            done[0] = (0, 1)
            self.assertEqual(metrics_client.get(port, f"{path}60")[0], 200)
            now[0] += 60.0
            self.assertEqual(metrics_client.get(port, f"{path}60")[0], 503)

    def test_what_counts_as_progress(self):
        table = tf_ext.SparseTable("worked", dim=2)
        column = tf_ext.feature_column.category_column("worked")
        layer = tf_ext.layers.EmbeddingFeatures([column], table)
        seen = [metrics.work_done()]
        for work in (
            lambda: layer({"worked": ["a"]}),
            lambda: table.pull([1]),
            lambda: table.push([1], tf.ones([1, 2])),
            lambda: training_counts.add_steps(1),
            lambda: training_counts.add_streamed(1, None),
        ):
            work()
            self.assertNotIn(metrics.work_done(), seen)
            seen.append(metrics.work_done())
        self.assertEqual(metrics.work_done(), seen[-1])

    @parameterized.parameters(
        "progress_seconds=0",
        "progress_seconds=-1",
        "progress_seconds=nan",
        "progress_seconds=inf",
        "progress_seconds=",
        "progress_seconds=soon",
        "progress_seconds=1&progress_seconds=2",
        "seconds=60",
    )
    def test_other_arguments_of_ready(self, query):
        port = self.serve(0)
        status, text = metrics_client.get(port, f"/ready?{query}")
        self.assertEqual(status, 400)
        self.assertIn("progress_seconds", text)
        self.assertIn(f"Received: {query}", text)

    def test_recovery_points(self):
        port = self.serve(0)
        none = training_counts.Points()
        self.enterContext(mock.patch.object(training_counts, "_points", none))
        self.assertNotIn(("tf_ext_point_step",), metrics_client.samples(port))
        model = _model("pointed")
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        x = {"id": np.arange(40)[:, None]}
        begin = time.time()
        model.fit(
            *(x, np.ones([40, 1])),
            batch_size=10,
            epochs=2,
            verbose=0,
            callbacks=[tf_ext.callbacks.TableSnapshot(folder, steps=3)],
        )
        found = metrics_client.samples(port)
        self.assertEqual(found["tf_ext_point_step",], 8)
        # After steps 3, 6 and 8.
        self.assertEqual(found["tf_ext_point_seconds_count",], 3)
        self.assertGreater(found["tf_ext_point_seconds_sum",], 0)
        self.assertEqual(found["tf_ext_point_pause_seconds_count",], 3)
        self.assertGreater(found["tf_ext_point_pause_seconds_sum",], 0)
        written = found["tf_ext_point_time_seconds",]
        self.assertBetween(written, begin, time.time())

    def test_of_several_publishers_the_one_that_is_farthest_behind(self):
        publishers = [
            _Publisher(1.0, 5, 500, 3000.0),
            _Publisher(7.0, 3, 300, 2000.0),
            _Publisher(4.0, 4, 400, None),  # It has found a version.
        ]
        port = self.serve(0)
        for one in publishers:
            training_counts.add_publisher(one)
            self.addCleanup(training_counts.remove_publisher, one)
        found = metrics_client.samples(port)
        for name, value in (
            ("lag_seconds", 7.0),
            ("version", 3),
            ("step", 300),
            ("point_time_seconds", 2000.0),
            ("rows_total", 30),
            ("publish_failures_total", 3),
        ):
            name = name if name.startswith("pub") else f"published_{name}"
            self.assertEqual(found[f"tf_ext_{name}",], value, name)

    def test_listens_on_loopback_unless_told_otherwise(self):
        port = self.serve(0)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        port = self.serve(0, "0.0.0.0")
        metrics_client.samples(port)
        socket.create_connection(("127.0.0.2", port)).close()
        port = self.serve(0, "::1")
        self.assertEqual(metrics_client.get(port, "/ready", "[::1]")[0], 200)

    def test_closes(self):
        server = tf_ext.utils.serve_metrics(0)
        server.close()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))

    @parameterized.parameters(
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("port", "80"),
        ("host", ""),
        ("host", None),
        ("host", 1),
    )
    def test_refuses_other_arguments(self, name, value):
        with self.assertRaisesRegex(
            ValueError,
            f"Argument `{name}` of serve_metrics must be .*Received: {name}=",
        ):
            tf_ext.utils.serve_metrics(**{"port": 0, name: value})

    def test_names_what_it_cannot_listen_at(self):
        port = self.serve(0)
        with self.assertRaisesRegex(
            RuntimeError, f"127.0.0.1:{port}: Address already in use. Is anoth"
        ):
            tf_ext.utils.serve_metrics(port)
        with self.assertRaisesRegex(
            RuntimeError, "served at nowhere.invalid:0: [^?]*$"
        ):
            tf_ext.utils.serve_metrics(0, "nowhere.invalid")

    def test_says_what_is_not_installed(self):
        with (
            mock.patch.dict("sys.modules", prometheus_client=None),
            self.assertRaisesRegex(
                ModuleNotFoundError, r"pip install 'tf_ext\[metrics\]'"
            ),
        ):
            tf_ext.utils.serve_metrics(0)


if __name__ == "__main__":
    tf.test.main()
