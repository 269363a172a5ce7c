# SPDX-License-Identifier: Apache-2.0
"""The manifest of examples/kubernetes/stream.yaml."""

import shutil
import subprocess
import tempfile
import time
import urllib.parse

import pytest
from absl.testing import absltest, parameterized
from cases import kubernetes_cases
from paths import ROOT

from tf_ext.distribute.ports import free_ports

pytestmark = pytest.mark.slow_tests(
    "StreamManifestTest::test_has_the_schema_*",
    "StreamManifestTest::test_the_store_*",
)

_FILE = ROOT / "examples" / "kubernetes" / "stream.yaml"


class StreamManifestTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.objects = kubernetes_cases.objects_of(_FILE)
        # Of each task its object, and the spec of its pods.
        self.tasks = {}
        for (kind, _), one in self.objects.items():
            if kind in ("Deployment", "StatefulSet"):
                template = one["spec"]["template"]
                task = template["metadata"]["labels"]["task"]
                self.tasks[task] = one["spec"], template["spec"]

    @parameterized.parameters("1.32", "latest")
    def test_has_the_schema_of(self, version):
        kubernetes_cases.check_schema(self, self.objects, version)

    def test_selectors_are_labels_of_the_pods(self):
        self.assertLen(self.tasks, 4)
        labels = {}
        for task, (spec, _) in self.tasks.items():
            labels[task] = spec["template"]["metadata"]["labels"]
            self.assertEqual(spec["selector"]["matchLabels"], labels[task])
        for task in ("store", "server"):
            service = self.objects["Service", f"stream-{task}"]["spec"]
            self.assertEqual(service["selector"], labels[task])
        policy = self.objects["NetworkPolicy", "stream-store"]["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], labels["store"])
        [rule] = policy["ingress"]
        [allowed] = rule["from"]
        for task in ("publisher", "server"):
            found = allowed["podSelector"]["matchLabels"]
            self.assertLessEqual(found.items(), labels[task].items())

    def test_addresses(self):
        data = self.objects["ConfigMap", "stream"]["data"]
        store = urllib.parse.urlsplit(data["store"])
        service = self.objects["Service", store.hostname]
        self.assertEqual(service["spec"]["ports"][0]["port"], store.port)
        of_store, pods = self.tasks["store"]
        self.assertEqual(of_store["serviceName"], store.hostname)
        [container] = pods["containers"]
        [port] = container["ports"]
        self.assertEqual(port["containerPort"], store.port)
        for task, key in (
            ("trainer", "broker"),
            ("publisher", "store"),
            ("server", "store"),
        ):
            [container] = self.tasks[task][1]["containers"]
            [variable] = container["env"]
            source = variable["valueFrom"]["configMapKeyRef"]
            self.assertEqual(source, {"name": "stream", "key": key})
            self.assertEqual(variable["name"], key.upper())

    def test_trainer_and_publisher_share_points(self):
        claim = ("PersistentVolumeClaim", "stream-points")
        self.assertEqual(
            self.objects[claim]["spec"]["accessModes"], ["ReadWriteMany"]
        )
        for task in ("trainer", "publisher"):
            spec, pods = self.tasks[task]
            self.assertEqual(spec["replicas"], 1)
            self.assertEqual(spec["strategy"], {"type": "Recreate"})
            [volume] = pods["volumes"]
            self.assertEqual(
                volume["persistentVolumeClaim"], {"claimName": claim[1]}
            )
            [container] = pods["containers"]
            self.assertEqual(
                container["volumeMounts"],
                [{"name": volume["name"], "mountPath": "/points"}],
            )

    def test_the_store_keeps_what_it_has(self):
        if shutil.which("redis-server") is None:
            self.skipTest("There is no redis-server.")
        redis = pytest.importorskip("redis")
        [container] = self.tasks["store"][1]["containers"]
        [port] = free_ports(1)
        with tempfile.TemporaryDirectory() as folder:
            command = [
                folder if part == "/data" else part
                for part in container["command"]
            ]
            with subprocess.Popen(
                [*command, "--port", str(port)], stdout=subprocess.DEVNULL
            ) as process:
                try:
                    client = redis.Redis(port=port)
                    self._wait_for(client)
                    # Else RedisSink refuses it.
                    found = client.config_get("maxmemory*")
                    self.assertEqual(found["maxmemory-policy"], "noeviction")
                    self.assertLess(
                        int(found["maxmemory"]),
                        int(container["resources"]["limits"]["memory"][:-2])
                        << 30,
                    )
                    self.assertEqual(
                        client.config_get("appendonly")["appendonly"], "yes"
                    )
                finally:
                    process.terminate()

    def _wait_for(self, client):
        import redis

        deadline = time.monotonic() + 60
        while True:
            try:
                client.ping()
                return
            except redis.exceptions.ConnectionError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)


if __name__ == "__main__":
    absltest.main()
