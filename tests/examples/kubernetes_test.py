# SPDX-License-Identifier: Apache-2.0
"""The manifests of examples/kubernetes, and what their containers run."""

import contextlib
import json
import pathlib
import re
import signal
import tempfile
import urllib.error

import metrics_client
import processes
import pytest
from absl.testing import absltest, parameterized
from cases import kubernetes_cases
from docs_util import blocks
from paths import ROOT

from tf_ext.distribute.ports import free_ports

pytestmark = pytest.mark.slow_tests(
    "ManifestTest::test_has_the_schema_*",
)


_FILE = ROOT / "examples" / "kubernetes" / "parameter_servers.yaml"
_METRICS_PORT = 9090
_OF_PODS = ("Deployment", "Job", "StatefulSet")
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def _tasks(objects):
    """`(task, index, name of the pod, spec of the pod)` of each pod."""
    for (kind, name), one in objects.items():
        if kind not in _OF_PODS:
            continue
        template = one["spec"]["template"]
        task = template["metadata"]["labels"]["task"]
        if kind != "StatefulSet":
            yield task, 0, template["spec"].get("hostname"), template["spec"]
        else:
            for index in range(one["spec"]["replicas"]):
                yield task, index, f"{name}-{index}", template["spec"]


class ManifestTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.objects = kubernetes_cases.objects_of(_FILE)
        [self.cluster] = [
            json.loads(one["data"]["cluster"])
            for (kind, _), one in self.objects.items()
            if kind == "ConfigMap"
        ]

    @parameterized.parameters("1.32", "latest")
    def test_has_the_schema_of(self, version):
        kubernetes_cases.check_schema(self, self.objects, version)

    def test_addresses_are_those_of_the_pods(self):
        [(_, service)] = [key for key in self.objects if key[0] == "Service"]
        found = {}
        for task, _, pod, spec in _tasks(self.objects):
            if task == "evaluator":
                continue
            [container] = spec["containers"]
            port = container["ports"][0]
            found.setdefault(task, []).append(
                f"{pod}.{service}:{port['containerPort']}"
            )
            if task == "chief":
                self.assertEqual(spec["subdomain"], service)
        self.assertEqual(found, self.cluster)
        for (kind, _), one in self.objects.items():
            if kind == "StatefulSet":
                self.assertEqual(one["spec"]["serviceName"], service)

    def test_all_serve_metrics_and_probes(self):
        [block] = blocks("docs/kubernetes.md", "python")
        for task, _, _, spec in _tasks(self.objects):
            [container] = spec["containers"]
            [port] = [p for p in container["ports"] if "name" in p]
            self.assertEqual(
                port, {"name": "metrics", "containerPort": _METRICS_PORT}
            )
            self.assertEqual(
                container["readinessProbe"],
                {"httpGet": {"path": "/ready", "port": port["name"]}},
            )
            if task in ("ps", "worker"):
                self.assertIn("--metrics_host=0.0.0.0", container["command"])
                self.assertIn(
                    f"--metrics_port={_METRICS_PORT}", container["command"]
                )
            else:
                self.assertIn("train.py", container["command"])
        self.assertIn(
            f'serve_metrics({_METRICS_PORT}, host="0.0.0.0")', block.text
        )
        for one in self.objects.values():
            if one["kind"] in _OF_PODS:
                metadata = one["spec"]["template"]["metadata"]
                self.assertEqual(
                    metadata["annotations"],
                    {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(_METRICS_PORT),
                    },
                )

    def test_threads_follow_limits(self):
        for task, _, _, spec in _tasks(self.objects):
            [container] = spec["containers"]
            for amounts in ("limits", "requests"):
                self.assertIn("cpu", container["resources"][amounts], task)

    def test_selectors_are_labels_of_the_pods(self):
        for (kind, name), one in self.objects.items():
            spec = one["spec"] if "spec" in one else {}
            if kind in ("Deployment", "StatefulSet"):
                self.assertEqual(
                    spec["selector"]["matchLabels"],
                    spec["template"]["metadata"]["labels"],
                )
            if kind in _OF_PODS:
                labels = spec["template"]["metadata"]["labels"]
                self.assertEqual(labels["job"], "training", name)
        service = self.objects["Service", "training"]["spec"]
        self.assertEqual(service["selector"], {"job": "training"})
        policy = self.objects["NetworkPolicy", "training"]["spec"]
        rule, of_metrics = policy["ingress"]
        self.assertEqual(of_metrics["ports"], [{"port": "metrics"}])
        for selector in (policy, rule["from"][0]):
            self.assertEqual(
                selector["podSelector"], {"matchLabels": {"job": "training"}}
            )

    def test_those_who_write_points_share_a_volume(self):
        mounted = {}
        for task, _, _, spec in _tasks(self.objects):
            claims = {
                v["name"]: v["persistentVolumeClaim"]["claimName"]
                for v in spec.get("volumes", [])
            }
            for mount in spec["containers"][0].get("volumeMounts", []):
                self.assertIn(
                    ("PersistentVolumeClaim", claims[mount["name"]]),
                    self.objects,
                )
                mounted[task] = mount["mountPath"]
        self.assertEqual(
            mounted, dict.fromkeys(["ps", "chief", "evaluator"], "/points")
        )

    @pytest.mark.slow
    def test_containers_train_and_evaluate(self):
        addresses = [a for job in self.cluster.values() for a in job]
        ports = free_ports(len(addresses))
        local = {a: f"127.0.0.1:{p}" for a, p in zip(addresses, ports)}
        with tempfile.TemporaryDirectory() as folder:
            [block] = blocks("docs/kubernetes.md", "python")
            text = block.text.replace('"/points"', f'"{folder}/points"')
            [port] = free_ports(1)
            text = text.replace(str(_METRICS_PORT), str(port))
            pathlib.Path(folder, "train.py").write_text(text)
            started = {}
            with contextlib.ExitStack() as stack:

                def start(*tasks):
                    for task, index, _, spec in _tasks(self.objects):
                        if task in tasks:
                            started[task, index] = stack.enter_context(
                                _start(spec, index, self.objects, local, folder)
                            )

                start("ps", "worker", "chief")
                self.check_probes(started)
                started["chief", 0].wait()
                start("evaluator")
                evaluator = started["evaluator", 0]
                last = "Evaluation of step 32: "
                processes.wait_until(lambda: last in evaluator.log())
                # It waits for more, until it is deleted.
                self.assertIsNone(evaluator.process.poll())
                evaluator.process.send_signal(signal.SIGTERM)
                evaluator.process.wait(60)
                for (task, _), run in started.items():
                    if task in ("ps", "worker"):
                        run.process.send_signal(signal.SIGTERM)
                        self.assertIn(f"/job:{task}/", run.wait() + run.log())

    def check_probes(self, started):
        """All servers become ready."""
        for (task, _), run in started.items():
            if task in ("ps", "worker"):
                processes.wait_until(lambda run=run: _is_ready(run))


def _is_ready(run):
    with contextlib.suppress(urllib.error.URLError):
        return metrics_client.get(run.metrics_port, "/ready")[0] == 200
    return False


def _start(spec, index, objects, local, folder):
    """Starts what a pod runs, at addresses of this machine."""
    [container] = spec["containers"]
    environment = {}

    def expand(text):
        return re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], text)

    for variable in container["env"]:
        source = variable.get("valueFrom")
        if source is None:
            value = expand(variable["value"])
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == _INDEX
            value = str(index)
        else:
            key = source["configMapKeyRef"]
            value = objects["ConfigMap", key["name"]]["data"][key["key"]]
            for address, here in local.items():
                value = value.replace(address, here)
        environment[variable["name"]] = value
    program, *arguments = map(expand, container["command"])
    assert program == "python"
    if arguments[0] != "-m":
        arguments[0] = str(pathlib.Path(folder, arguments[0]))
    [port] = free_ports(1)  # All tasks are on one machine.
    arguments = [a.replace(str(_METRICS_PORT), str(port)) for a in arguments]
    run = processes.Program(*arguments, **environment)
    run.metrics_port = port
    return run


if __name__ == "__main__":
    absltest.main()
