# SPDX-License-Identifier: Apache-2.0
"""The model of what steps cost, its fit, and how it is measured."""

import argparse
import contextlib
import http.client
import http.server
import io
import json
import math
import os
import pathlib
import re
import sys
import threading
import urllib.parse
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from docs_util import blocks
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import cluster_benchmarks
import delays
import point_benchmarks
import run
import scaling_model
from scaling_model import LARGE, NETWORK, Job, limits, predict, slowest_of

pytestmark = pytest.mark.slow

_PAGE = ROOT / "docs" / "scaling.md"
_SERVERS = Job(2, 2, 1024, 4, 16)
_SYNCHRONOUS = Job(3, 0, 1024, 4, 16)


def _rows(heading):
    """The cells of the first table after a heading of the page."""
    _, _, text = _PAGE.read_text().partition(f"\n## {heading}\n")
    [table] = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[:1]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()[2:]
    ]


class ModelTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        *((field, field) for field in ("samples", "tables", "dim"))
    )
    def test_more_costs_more(self, field):
        for job in (_SERVERS, _SYNCHRONOUS):
            more = job._replace(**{field: 2 * getattr(job, field)})
            before, after = predict(job, LARGE), predict(more, LARGE)
            self.assertGreater(after["worker_ms"], before["worker_ms"])
            for cost in before:
                self.assertGreaterEqual(after[cost], before[cost], cost)

    def test_more_signs_and_weights_cost_more(self):
        for job in (_SERVERS, _SYNCHRONOUS):
            for field in ("signs", "weights"):
                more = LARGE._replace(**{field: 2 * getattr(LARGE, field)})
                before, after = predict(job, LARGE), predict(job, more)
                for cost in ("bytes", "packets"):
                    self.assertGreater(after[cost], before[cost], cost)
                cpu_ms = [
                    sum(v for cost, v in of.items() if cost.endswith("_ms"))
                    for of in (before, after)
                ]
                self.assertGreater(cpu_ms[1], cpu_ms[0])
                self.assertGreaterEqual(after["worker_ms"], before["worker_ms"])

    def test_servers_share_a_step(self):
        before = predict(_SERVERS, LARGE)
        after = predict(_SERVERS._replace(servers=8), LARGE)
        self.assertLess(after["server_ms"], before["server_ms"])
        self.assertGreater(after["worker_ms"], before["worker_ms"])
        self.assertGreater(after["chief_ms"], before["chief_ms"])

    def test_executions_relieve_the_chief(self):
        before = predict(_SERVERS, LARGE)
        after = predict(_SERVERS._replace(execution=8), LARGE)
        self.assertLess(after["chief_ms"], 0.26 * before["chief_ms"])
        for cost in before:
            self.assertLessEqual(after[cost], before[cost], cost)
        reads = predict(_SERVERS._replace(chief_reads=True), LARGE)
        self.assertGreater(reads["chief_ms"], before["chief_ms"])
        # What it sends: int64 ids of 26 columns, and labels.
        self.assertAllClose(
            reads["bytes"] - before["bytes"], 1024 * 212, rtol=0.1
        )

    def test_bytes_are_those_of_rows(self):
        model = LARGE._replace(weights=1, signs=1e6)
        found = predict(_SERVERS, model)["bytes"]
        self.assertAllClose(found, 1e6 * (16 + 8 * 16), rtol=0.1)
        found = predict(_SYNCHRONOUS, model)["bytes"]
        # A third of the rows are the worker's own; buffers are rounded up.
        self.assertAllClose(found, 1.06e6 * (8 + 8 * 16) * 2 / 3, rtol=0.1)

    def test_large_sums_take_a_ring(self):
        weights = (1 << 18) // 3
        few = predict(_SYNCHRONOUS, LARGE._replace(weights=weights))
        many = predict(_SYNCHRONOUS, LARGE._replace(weights=weights + 1))
        self.assertLess(many["bytes"], few["bytes"])
        self.assertGreater(many["delays"], few["delays"])

    @parameterized.named_parameters(
        ("workers", {"workers": 0}, {}, "workers must be at least 1.*0"),
        ("servers", {"servers": -1}, {}, "servers must be at least 0.*-1"),
        ("samples", {"samples": 0}, {}, "samples must be at least 1"),
        ("tables", {"tables": 0}, {}, "tables must be at least 1"),
        ("dim", {"dim": 0}, {}, "dim must be at least 1"),
        ("execution", {"execution": 0}, {}, "execution must be at least 1"),
        (
            *("synchronous_execution", {"servers": 0, "execution": 8}, {}),
            "executions of one step.*execution=8",
        ),
        (
            *("one_synchronous", {"servers": 0, "workers": 1}, {}),
            "at least 2. Received: 1",
        ),
        ("signs", {}, {"signs": -1.0}, "signs must be positive.*-1.0"),
        ("no_number", {}, {"signs": math.nan}, "signs must be positive.*nan"),
        ("weights", {}, {"weights": 0}, "weights must be positive"),
        ("columns", {}, {"columns": 0}, "columns must be positive"),
    )
    def test_refuses(self, job, model, message):
        with self.assertRaisesRegex(ValueError, message):
            predict(_SERVERS._replace(**job), LARGE._replace(**model))

    @parameterized.named_parameters(
        ("cores", {"cores": 0}),
        ("bytes", {"bytes_per_second": -1.0}),
        ("delay", {"delay_ms": -0.1}),
    )
    def test_refuses_networks(self, fields):
        [name] = fields
        with self.assertRaisesRegex(ValueError, f"{name} must be"):
            limits(_SERVERS, LARGE, NETWORK._replace(**fields))

    def test_limits(self):
        few = limits(_SERVERS, LARGE, NETWORK)
        many = limits(_SERVERS._replace(workers=64), LARGE, NETWORK)
        self.assertAllClose(many.pop("workers"), 32 * few.pop("workers"))
        self.assertEqual(many, few)
        slow = NETWORK._replace(bytes_per_second=1e6)
        found = limits(_SERVERS._replace(workers=64), LARGE, slow)
        self.assertEqual(min(found, key=found.get), "network of servers")
        for job in (_SERVERS, _SYNCHRONOUS):
            far = limits(job, LARGE, NETWORK._replace(delay_ms=5))["workers"]
            self.assertLess(far, limits(job, LARGE, NETWORK)["workers"])

    def test_slowest(self):
        self.assertEqual(slowest_of(1, 0.1), 1.0)
        draws = np.random.default_rng(1).normal(1.0, 0.1, [10_000, 64])
        self.assertAllClose(slowest_of(64, 0.1), draws.max(1).mean(), rtol=0.05)
        for workers, spread in ((0, 0.1), (1, -0.1)):
            with self.assertRaisesRegex(ValueError, f"workers={workers}"):
                slowest_of(workers, spread)


class PageTest(tf.test.TestCase):
    def test_code(self):
        [block] = blocks("docs/scaling.md", "python")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.place, "exec"), {})
        self.assertRegex(
            printed.getvalue(), r"(?s)'worker_ms': \d.*'CPU of the chief': \d"
        )

    def test_checked_steps_are_predicted_as_the_page_says(self):
        rows = _rows("Predicted and measured")
        self.assertLen(rows, len(scaling_model.CHECKED))
        jobs = sorted(
            scaling_model.CHECKED, key=lambda job: (job.servers == 0, job)
        )
        for row, job in zip(rows, jobs):
            weights = 26 * job.dim * 64 + 64 + 64 * 32 + 32 + 33
            model = LARGE._replace(signs=_signs(job.samples), weights=weights)
            predicted = predict(job, model)
            name = cluster_benchmarks.name_of(job).strip("| ").split(" | ")
            self.assertEqual(row[: len(name)], name)
            for cost, cell in zip(scaling_model.COSTS, row[len(name) :]):
                if cell:
                    measured, ratio = re.match(r"(\S+) \((.*)\)", cell).groups()
                    measured = float(measured.replace(",", ""))
                    self.assertAllClose(
                        predicted[cost] / measured, float(ratio), atol=0.03
                    )

    def test_large_clusters_are_predicted_as_the_page_says(self):
        for row in _rows("64 workers and 16 servers"):
            execution, *cells = (float(c.replace(",", "")) for c in row)
            job = Job(64, 16, 2048, 1, 16, int(execution))
            found = limits(job, LARGE, NETWORK)
            self.assertAllClose(
                [1e-3 * value for value in found.values()], cells, rtol=0.02
            )


def _signs(samples):
    return cluster_benchmarks.distinct(samples)


class FitTest(tf.test.TestCase):
    def _lines(self):
        """What would be measured if the coefficients were true."""
        lines = []
        jobs = [*scaling_model.FITTED, *scaling_model.CHECKED]
        for job in [*jobs, *cluster_benchmarks.DELAYED]:
            known = {
                **{"benchmark": "scaling", "job": job._asdict()},
                **{"signs": 9.0 * job.samples, "weights": 2000 * job.dim},
            }
            model = scaling_model.Model(26, known["signs"], known["weights"])
            cost = predict(job, model)
            slope = cost.pop("delays")
            if job in cluster_benchmarks.DELAYED:
                for ms in (0.0, 1.0, 2.0, 5.0):
                    wall = {"wall_ms": 30 + slope * ms}
                    lines.append({**known, **wall, "delay_seconds": 1e-3 * ms})
            if job in jobs:
                lines.append({**known, **cost, "delay_seconds": None})
        return lines

    def test_finds_the_coefficients(self):
        costs = scaling_model.measured(self._lines())
        found = scaling_model.fit(costs)
        for cost, terms in scaling_model.COEFFICIENTS.items():
            self.assertEqual(found[cost].keys(), terms.keys())
            for term, value in terms.items():
                with self.subTest(f"{cost} {term}"):
                    self.assertAllClose(
                        found[cost][term], value, rtol=1e-3, atol=1e-3
                    )

    def test_no_coefficient_is_negative(self):
        rng = np.random.default_rng(1)
        costs = {
            key: {c: v * rng.uniform(0.3, 3) for c, v in of.items()}
            for key, of in scaling_model.measured(self._lines()).items()
        }
        for terms in scaling_model.fit(costs).values():
            self.assertAllGreaterEqual(list(terms.values()), 0.0)

    def test_prints_the_tables_of_the_page(self):
        path = pathlib.Path(self.get_temp_dir(), "results")
        path.write_text("\n".join(json.dumps(x) for x in self._lines()))
        printed = self._fit(path)
        for row in _rows("64 workers and 16 servers"):
            self.assertIn(f"\n| {' | '.join(row)} |\n", printed)
        for job in scaling_model.CHECKED:
            self.assertIn(f"\n{cluster_benchmarks.name_of(job)} ", printed)

    def test_refuses_other_files(self):
        path = pathlib.Path(self.get_temp_dir(), "results")
        path.write_text('{"benchmark": "pull"}\n')
        with self.assertRaisesRegex(SystemExit, "no results of `scaling`"):
            self._fit(path)

    def _fit(self, path):
        args = run.parse_arguments(["fit_scaling", f"--json={path}"])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run.run("fit_scaling", args, threads=None)
        return printed.getvalue()


class _Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *args):
        pass


class MeasuringTest(tf.test.TestCase):
    def test_proxy_delays_what_it_passes_on(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), _Echo)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        sent = np.random.default_rng(1).bytes(3_000_000)
        with mock.patch.dict("os.environ"), delays.proxy() as path:
            proxy = urllib.parse.urlsplit(os.environ["grpc_proxy"])
            delay = delays.Delay(path)
            delay.seconds = 0.02
            client = http.client.HTTPConnection(proxy.netloc, timeout=60)
            client.set_tunnel("127.0.0.1", server.server_port)
            client.request("POST", "/", sent)
            self.assertEqual(client.getresponse().read(), sent[::-1])
            client.close()
            # Never less; a busy machine may add any time.
            self.assertGreaterEqual(delay.mean(), 0.02)
        self.assertNotIn("grpc_proxy", os.environ)

    def test_counts_a_cluster_through_the_proxy(self):
        args = argparse.Namespace(threads=2)
        job = Job(1, 1, 64, 2, 4, execution=2)
        with (
            mock.patch.object(cluster_benchmarks, "_DELAYS_SECONDS", (0.002,)),
            mock.patch.dict("os.environ"),
            delays.proxy() as delay_file,
        ):
            # The program imports its neighbours.
            os.environ.pop("PYTHONSAFEPATH", None)
            lines = cluster_benchmarks.measure(args, [job], 2, delay_file)
        self.assertLen(lines, 2)
        for line in lines:
            self.assertEqual(Job(**line["job"]), job)
            self.assertGreaterEqual(line["delay_seconds"], 0.002)
            for role in ("chief", "worker", "server"):
                self.assertGreater(line[f"{role}_ms"], 0.0)
            # Rows and dense weights twice, and again through the proxy.
            self.assertGreater(line["bytes"], 2 * line["signs"] * 48)
            self.assertGreater(line["packets"], 1.0)
            self.assertGreater(line["cpu_ms"], line["worker_ms"])

    def _lines_of(self, name, repeats):
        """The lines of JSON that a benchmark writes."""
        path = pathlib.Path(self.get_temp_dir(), name)
        args = run.parse_arguments(
            [name, f"--repeats={repeats}", f"--json={path}"]
        )
        with (
            mock.patch.dict("os.environ"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            os.environ.pop("PYTHONSAFEPATH", None)
            run.run(name, args, threads=2)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def test_points(self):
        trainings = ((1, 0, 12), (1, 1, 12), (2, 0, 12))
        with mock.patch.object(point_benchmarks, "TRAININGS", trainings):
            lines = self._lines_of("points", 1)
        self.assertEqual(
            [(line["workers"], line["servers"]) for line in lines],
            [(1, 0), (1, 1), (2, 0)],
        )
        for line in lines:
            for name in ("throughput", "cpu"):
                self.assertGreater(line[name], 0.0)
            for kind in ("with", "without"):
                self.assertLen(line["steps_per_second"][kind], 1)

    def test_clusters(self):
        jobs = (
            *(Job(1, 0, 64, 1, 4), Job(1, 1, 64, 2, 4, 1, True)),
            *(Job(1, 1, 64, 2, 4, 2), Job(2, 0, 32, 2, 4)),
        )
        with mock.patch.object(cluster_benchmarks, "CLUSTERS", jobs):
            lines = self._lines_of("clusters", 2)
        self.assertEqual(
            [line["case"] for line in lines],
            [
                *("1: 1 table", "1 + 1: 2 tables, the chief reads"),
                *("1 + 1: 2 tables, 2 at once", "2: 2 tables"),
            ],
        )
        self.assertEqual([line["items"] for line in lines], [64] * 4)
        for line in lines:
            self.assertEqual(line["repeats"], 2)
            self.assertGreater(line["cpu_ms"], 0.0)


if __name__ == "__main__":
    tf.test.main()
