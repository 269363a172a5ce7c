# SPDX-License-Identifier: Apache-2.0
"""The options of a server that are about its metrics."""

import contextlib
import io
import json
import socket
from unittest import mock

import metrics_client
from absl.testing import absltest, parameterized
from clusters.listeners import Listener, speak_http2

from tf_ext.distribute import cluster, metrics_server, ports, server

_CLUSTER = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:2222"]}


class _EndedError(Exception):
    pass


class ServerMetricsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--metrics_port=0"], "must be a port, 1 to 65535. Received: 0"),
        (["--metrics_port=65536"], "1 to 65535. Received: 65536"),
        (["--metrics_port=-1"], "1 to 65535. Received: -1"),
        (["--metrics_port=many"], "1 to 65535. Received: many"),
        (["--metrics_host=::"], "together with --metrics_port"),
        (["--metrics_port=2222"], "another port than the task's own"),
    )
    def test_refuses_other_options(self, options, text):
        written = io.StringIO()
        with (
            contextlib.redirect_stderr(written),
            self.assertRaises(SystemExit) as ended,
        ):
            server.main(
                [f"--cluster={json.dumps(_CLUSTER)}", "--job=ps", "--task=0"]
                + options
            )
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--metrics_", written.getvalue())
        self.assertIn(text, written.getvalue())

    def serve(self, address, port, host=None):
        made = []

        class Kept(metrics_server.MetricsServer):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)

        task = cluster.Task({**_CLUSTER, "ps": [address]}, "ps", 0)
        with mock.patch.object(server, "MetricsServer", Kept):
            server._serve_metrics(port, host, task)
        self.addCleanup(made[0].close)
        return made[0]

    def test_is_ready_when_its_server_answers(self):
        [port, own] = ports.free_ports(2)
        address = f"127.0.0.1:{own}"
        self.serve(address, port)
        status, text = metrics_client.get(port, "/ready")
        self.assertEqual(status, 503)
        self.assertIn("Not ready: the port of TensorFlow refuses", text)
        self.assertEqual(metrics_client.get(port, "/metrics")[0], 200)
        for answer, expected in ((lambda _: None, 503), (speak_http2, 200)):
            with Listener(answer) as listener:
                [port] = ports.free_ports(1)
                self.serve(listener.address, port)
                self.assertEqual(
                    metrics_client.get(port, "/ready")[0], expected
                )

    def ended(self, port, host=None):
        with (
            mock.patch.object(server, "_end", side_effect=_EndedError) as end,
            self.assertLogs("tf_ext.distribute.server", "ERROR") as logs,
            self.assertRaises(_EndedError),
        ):
            self.serve("127.0.0.1:2222", port, host)
        [[status]] = [call.args for call in end.mock_calls]
        return status, logs.output[0]

    def test_ends_if_the_port_is_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            status, text = self.ended(port)
        self.assertEqual(status, 98)
        self.assertIn(
            f"Metrics cannot be served at 127.0.0.1:{port}: Address already in "
            "use. Is another process using the port?",
            text,
        )

    def test_ends_without_prometheus_client(self):
        with mock.patch.dict("sys.modules", prometheus_client=None):
            status, text = self.ended(2223)
        self.assertEqual(status, 2)
        self.assertIn("pip install 'tf_ext[metrics]'", text)

    def test_ends_if_the_host_is_empty(self):
        status, text = self.ended(2223, "")
        self.assertEqual(status, 2)
        self.assertIn("`host` of serve_metrics must be an address", text)


if __name__ == "__main__":
    absltest.main()
