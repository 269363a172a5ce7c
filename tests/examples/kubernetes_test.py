"""The manifests of examples/kubernetes, and what their containers run."""

import contextlib
import copy
import json
import pathlib
import re
import signal
import tempfile

import kubernetes_validate
import processes
import pytest
import yaml
from absl.testing import absltest, parameterized
from docs_util import blocks
from paths import ROOT

from tf_ext.distribute.ports import free_ports

_FILE = ROOT / "examples" / "kubernetes" / "parameter_servers.yaml"
_VERSIONS = ("1.32", kubernetes_validate.latest_version())
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def _objects():
    """The objects of the file by `(kind, name)`."""
    documents = yaml.safe_load_all(_FILE.read_text())
    return {(o["kind"], o["metadata"]["name"]): o for o in documents}


def _tasks(objects):
    """`(task, index, name of the pod, spec of the pod)` of each pod."""
    for (kind, name), one in objects.items():
        if kind not in ("Job", "StatefulSet"):
            continue
        template = one["spec"]["template"]
        task = template["metadata"]["labels"]["task"]
        if kind == "Job":
            yield task, 0, template["spec"].get("hostname"), template["spec"]
        else:
            for index in range(one["spec"]["replicas"]):
                yield task, index, f"{name}-{index}", template["spec"]


class ManifestTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.objects = _objects()
        [self.cluster] = [
            json.loads(one["data"]["cluster"])
            for (kind, _), one in self.objects.items()
            if kind == "ConfigMap"
        ]

    @parameterized.parameters(*_VERSIONS)
    def test_has_the_schema_of(self, version):
        for one in self.objects.values():
            kubernetes_validate.validate(one, version, strict=True)
            other = copy.deepcopy(one)
            other["metadata"]["nmae"] = "training"
            with self.assertRaises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(other, version, strict=True)

    def test_addresses_are_those_of_the_pods(self):
        [(_, service)] = [key for key in self.objects if key[0] == "Service"]
        found = {}
        for task, _, pod, spec in _tasks(self.objects):
            if task == "evaluator":
                continue
            [container] = spec["containers"]
            [port] = container["ports"]
            found.setdefault(task, []).append(
                f"{pod}.{service}:{port['containerPort']}"
            )
            if task == "chief":
                self.assertEqual(spec["subdomain"], service)
            else:
                probe = container["readinessProbe"]["tcpSocket"]
                self.assertEqual(probe["port"], port["containerPort"])
        self.assertEqual(found, self.cluster)
        for (kind, _), one in self.objects.items():
            if kind == "StatefulSet":
                self.assertEqual(one["spec"]["serviceName"], service)

    def test_selectors_are_labels_of_the_pods(self):
        for (kind, name), one in self.objects.items():
            spec = one["spec"] if "spec" in one else {}
            if kind == "StatefulSet":
                self.assertEqual(
                    spec["selector"]["matchLabels"],
                    spec["template"]["metadata"]["labels"],
                )
            if kind in ("Job", "StatefulSet"):
                labels = spec["template"]["metadata"]["labels"]
                self.assertEqual(labels["job"], "training", name)
        service = self.objects["Service", "training"]["spec"]
        self.assertEqual(service["selector"], {"job": "training"})
        policy = self.objects["NetworkPolicy", "training"]["spec"]
        [rule] = policy["ingress"]
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
            # The evaluator starts when all points are there.
            text = text.replace("timeout_seconds=3600", "timeout_seconds=1")
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
                started["chief", 0].wait()
                start("evaluator")
                evaluated = started["evaluator", 0].wait()
                self.assertIn("{32: {'loss': ", evaluated)
                for (task, _), run in started.items():
                    if task in ("ps", "worker"):
                        run.process.send_signal(signal.SIGTERM)
                        self.assertIn(f"/job:{task}/", run.wait() + run.log())


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
    return processes.Program(*arguments, **environment)


if __name__ == "__main__":
    absltest.main()
