# SPDX-License-Identifier: Apache-2.0
"""What `python -m tf_ext.distribute.status` prints of pages of metrics."""

import contextlib
import http.server
import io
import json
import os
import threading
import time
import types
from unittest import mock

from absl.testing import absltest, parameterized

import tf_ext
from tf_ext.distribute import ports, status

_INFO = 'tf_ext_task_info{{task="{}",tensorflow="2.21",tf_ext="0.1.0"}} 1\n'
_OPS = """\
tf_ext_table_op_seconds_count{{table="a",op="{op}"}} {calls}
tf_ext_table_op_seconds_sum{{table="a",op="{op}"}} {seconds}
tf_ext_table_op_ids_total{{table="a",op="{op}"}} {ids}
"""


def _server_page(index, second, pull_ms=2.0):
    """That of a server with two tables, which pulls 50 times a second."""
    calls = 1000 + 50 * second
    lines = [_INFO.format(f"/job:ps/task:{index}")]
    for op, ms, ids in (("pull", pull_ms, 70), ("push", 4.0, 60)):
        lines.append(
            _OPS.format(
                op=op,
                calls=calls,
                # The first second of the run was slow.
                seconds=60 + calls * ms / 1000,
                ids=calls * ids,
            )
        )
    lines.append('tf_ext_table_rows{table="a"} 3000\n')
    lines.append('tf_ext_table_rows{table="b"} 10000\n')
    lines.append(f'tf_ext_table_step{{table="a"}} {calls}\n')
    lines.append('tf_ext_table_step{table="b"} 7\n')
    lines.append(f"process_cpu_seconds_total {10 + 0.5 * second}\n")
    lines.append("process_resident_memory_bytes 1.5e9\n")
    return "".join(lines)


def _chief_page(second, slow=None):
    text = _INFO.format("/job:chief/task:0")
    text += f"tf_ext_steps_total {2000 + 100 * second}\n"
    text += "tf_ext_steps_in_flight 3\n"
    text += f"tf_ext_staleness_steps_count {100 * second}\n"
    text += f"tf_ext_staleness_steps_sum {125 * second}\n"
    text += f"tf_ext_point_step 1900\ntf_ext_point_time_seconds {time.time()}\n"
    for task in ("/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"):
        seconds = 0.06 if task == slow else 0.002
        text += f'tf_ext_task_answer_seconds{{task="{task}"}} {seconds}\n'
    return text


class StatusTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # The time between both readings, whatever it really takes.
        self.now = 0.0
        # Of this module alone: threads of other tests may sleep.
        clock = types.SimpleNamespace(
            sleep=self.sleep, monotonic=lambda: self.now, time=time.time
        )
        self.enterContext(mock.patch.object(status, "time", clock))

    def sleep(self, seconds):
        self.now += seconds

    def serve(self, page, ready=(200, "ready")):
        """Serves a function of the second; returns host:port."""
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                code, text = ready
                if self.path == "/metrics":
                    code, text = 200, page(test.now)
                data = text if isinstance(text, bytes) else text.encode()
                self.send_response(code)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        # Polls more often than twice a second when it is to end.
        serve = lambda: server.serve_forever(0.01)  # noqa: E731
        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    def run_main(self, *arguments):
        """(status, lines of output, errors)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = status.main(list(arguments))
        return code, out.getvalue().splitlines(), err.getvalue()

    def test_a_cluster(self):
        addresses = [
            self.serve(_chief_page),
            self.serve(lambda now: _server_page(0, now)),
            self.serve(lambda now: _server_page(1, now)),
        ]
        code, lines, _ = self.run_main(*addresses, "--seconds=4")
        self.assertEqual(code, 0)
        table = [line.split("  ") for line in lines[:4]]
        table = [[c.strip() for c in row if c.strip()] for row in table]
        heads = ["task", "ready", "rows", "step", "steps/s", "pulls/s"]
        heads += ["pull ms", "push ms", "ids/s", "in flight", "staleness"]
        self.assertEqual(table[0], [*heads, "cores", "GB"])
        self.assertEqual(
            table[1],
            ["/job:chief/task:0", "yes", "-", "-", "100.0", "-", "-", "-", "-"]
            + ["3", "1.25", "-", "-"],
        )
        for index, row in enumerate(table[2:]):
            self.assertEqual(
                row,
                [f"/job:ps/task:{index}", "yes", "13,000", "1,200", "-"]
                + ["50.0", "2.00", "4.00", "3,500", "-", "-", "0.50", "1.50"],
            )
        [point] = lines[4:]
        self.assertRegex(
            point,
            "/job:chief/task:0: the last recovery point is of step 1,900, "
            r"\d s ago.",
        )

    def test_a_slow_server_is_named_by_its_pulls_and_its_answers(self):
        slow = "/job:ps/task:1"
        addresses = [self.serve(lambda now: _chief_page(now, slow))] + [
            self.serve(lambda now, i=i, ms=ms: _server_page(i, now, ms))
            for i, ms in enumerate((2.0, 6.1, 1.8))
        ]
        code, lines, _ = self.run_main(*addresses)
        self.assertEqual(code, 0)
        self.assertEqual(
            lines[-2:],
            [
                f"{slow} is slow: a pull takes 6.10 ms, that of the others "
                "1.90.",
                f"{slow} is slow: an answer to /job:chief/task:0 takes 60.00 "
                "ms, that of the others 2.00.",
            ],
        )

    def test_few_calls_tell_nothing(self):
        addresses = [
            self.serve(lambda now, i=i, ms=ms: _server_page(i, now, ms))
            for i, ms in enumerate((2.0, 60.0))
        ]
        _, lines, _ = self.run_main(*addresses, "--seconds=0.38")
        self.assertLen(lines, 3)
        _, lines, _ = self.run_main(*addresses, "--seconds=0.4")
        self.assertLen(lines, 4)

    def test_tasks_that_are_not_ready_or_do_not_answer(self):
        [free] = ports.free_ports(1)
        addresses = [
            self.serve(_chief_page, (503, "Not ready: it waits.\n")),
            f"127.0.0.1:{free}",
            self.serve(lambda _: "python_info 1\n"),
            self.serve(lambda _: b"\xff\xfe"),
        ]
        code, lines, _ = self.run_main(*addresses)
        self.assertEqual(code, 1)
        self.assertStartsWith(lines[1], "/job:chief/task:0  no ")
        for line, address in zip(lines[2:5], addresses[1:], strict=True):
            self.assertRegex(line, rf"{address} +no +-")
        text = "\n".join(lines[5:])
        self.assertIn(f"{addresses[1]} does not answer: ", text)
        self.assertIn(f"{addresses[2]} does not serve metrics of tf_ext", text)
        self.assertIn(f"{addresses[3]} does not serve metrics of tf_ext", text)
        self.assertIn("/job:chief/task:0: Not ready: it waits.", text)

    def test_a_task_that_began_again_in_between(self):
        address = self.serve(lambda now: _server_page(0, -10 * now))
        code, lines, _ = self.run_main(address)
        self.assertEqual(code, 0)
        self.assertNotIn("pull ms", lines[0])
        self.assertEqual(lines[1].split()[4:6], ["0.0", "0"])

    def test_hosts_of_the_cluster(self):
        page = self.serve(lambda now: _server_page(0, now))
        port = page.rpartition(":")[2]
        cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
        cluster["ps"] = ["127.0.0.1:3"]
        task = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
        with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(task)):
            code, lines, _ = self.run_main(f"--port={port}")
        self.assertEqual(code, 0)
        self.assertLen(lines, 2)  # One process has the port.
        code, lines, _ = self.run_main(
            f"--port={port}", f"--cluster={json.dumps(cluster)}"
        )
        self.assertEqual(code, 0)

    def test_this_process(self):
        server = tf_ext.utils.serve_metrics(0)
        self.addCleanup(server.close)
        address = f"127.0.0.1:{server.port}"
        code, lines, _ = self.run_main(address)
        self.assertEqual(code, 0)
        self.assertRegex(lines[1], rf"^{address} +yes ")

    @parameterized.parameters(
        (["nowhere"], "must be the host:port"),
        (["a:0"], "must be the host:port .* Received: a:0"),
        ([":80"], "must be the host:port"),
        ([], "--port must be the port of metrics"),
        (["--port=0"], "--port must be the port .* Received: --port=0"),
        (["--port=1", "--cluster={}"], "--cluster"),
        (["a:1", "--seconds=0"], "--seconds must be a positive number"),
        (["a:1", "--seconds=nan"], "--seconds must be a positive number"),
    )
    def test_refuses_other_arguments(self, arguments, message):
        code, lines, errors = self.run_main(*arguments)
        self.assertEqual((code, lines), (2, []))
        self.assertRegex(errors, message)

    def test_says_what_is_not_installed(self):
        with mock.patch.dict("sys.modules", {"prometheus_client.parser": None}):
            code, _, errors = self.run_main("127.0.0.1:1")
        self.assertEqual(code, 2)
        self.assertIn("pip install 'tf_ext[metrics]'", errors)


if __name__ == "__main__":
    absltest.main()
