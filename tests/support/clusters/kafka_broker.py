# SPDX-License-Identifier: Apache-2.0
"""Brokers of Apache Kafka: real ones, and that of librdkafka for tests.

A real one is at TF_EXT_KAFKA=host:port, or runs by the jars of Maven's artefact
org.apache.kafka:kafka_2.13 and its dependencies in TF_EXT_KAFKA_LIBS, a folder.
"""

import os
import pathlib
import shutil
import subprocess
import time
import uuid

import confluent_kafka
from confluent_kafka import admin

from tf_ext.distribute.ports import free_ports

_TIMEOUT_SECONDS = 300
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_QUIET = {"log_level": 0}


def missing():
    """Why there is no real broker; None if there is one."""
    if os.environ.get("TF_EXT_KAFKA"):
        return None
    if not os.environ.get("TF_EXT_KAFKA_LIBS"):
        return "Neither TF_EXT_KAFKA nor TF_EXT_KAFKA_LIBS names a Kafka."
    return None if shutil.which("java") else "There is no java."


class MockBroker:
    """A broker within this process.

    Attributes:
      servers: string, its address.
    """

    def __init__(self):
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": "mock",
                "test.mock.num.brokers": 1,
                "linger.ms": 0,
                **_QUIET,
            }
        )
        [broker] = self.producer.list_topics(timeout=10).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"

    def topic(self):
        """The name of a new topic of four partitions."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        self.producer.list_topics(name, 10)  # Which makes it.
        return name


class Broker:
    """A real broker, which `close` ends.

    Attributes:
      servers: string, its address.
      can_be_killed: bool, whether `kill` and `start` work.
    """

    def __init__(self, folder):
        self.servers = os.environ.get("TF_EXT_KAFKA", "")
        self.can_be_killed = not self.servers
        self._process = None
        if self.can_be_killed:
            self._folder = pathlib.Path(folder)
            port, controller = free_ports(2)
            self.servers = f"127.0.0.1:{port}"
            self._properties = self._folder / "server.properties"
            self._properties.write_text(
                _PROPERTIES.format(
                    port=port, controller=controller, folder=folder
                )
            )
            made = self._java(
                "kafka.tools.StorageTool",
                *("format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"),
            )
            assert made.wait() == 0, self.log()
            self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        self._process = self._java("kafka.Kafka")
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        asked = self._admin()
        while True:
            try:
                asked.list_topics(timeout=20)
                return
            except confluent_kafka.KafkaException:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()

    def log(self):
        """What it wrote."""
        return (self._folder / "log").read_text()[-3000:]

    def _java(self, main, *arguments):
        libs = os.environ["TF_EXT_KAFKA_LIBS"]
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen(
                [
                    *("java", "-Xmx256m", "-XX:+UseSerialGC", "-cp"),
                    *(f"{libs}/*", main, *arguments, self._properties),
                ],
                stdout=log,
                stderr=log,
            )

    def kill(self):
        """Kills it, without notice."""
        self._process.kill()
        self._process.wait()

    def close(self):
        """Ends it, if it was started here."""
        if self._process is not None:
            self.kill()

    def _admin(self):
        return admin.AdminClient({"bootstrap.servers": self.servers, **_QUIET})

    def topic(self, partitions=4):
        """The name of a new topic."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        asked = self._admin()  # Its futures end with it.
        made = asked.create_topics(
            [admin.NewTopic(name, partitions, 1)], operation_timeout=30
        )
        made[name].result()
        return name

    @property
    def producer(self):
        """A new producer."""
        return confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, **_QUIET}
        )


def produce(producer, topic, values, **options):
    """Sends values, over four partitions in turn."""
    for number, value in enumerate(values):
        partition = options.get("partition", number % 4)
        while True:
            try:
                producer.produce(
                    topic, value, **{**options, "partition": partition}
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_TIMEOUT_SECONDS) == 0
