# SPDX-License-Identifier: Apache-2.0
"""Sources that are away where a stream begins."""

import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import confluent_kafka
import pytest
import redis
import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters import kafka_broker, redis_server
from processes import program_environment
from queue_source import Queue

import tf_ext
from tf_ext._keras import keras
from tf_ext.data import source_waiting, stream_reader
from tf_ext.data.errors import reading_error
from tf_ext.data.source_waiting import when_available

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
Unavailable = tf_ext.data.SourceUnavailableError
_X = Schema([Field("x", "int64")])


class _Away(Queue):
    """It does not answer questions of a kind for some times."""

    def __init__(self, question, times, **partitions):
        super().__init__(**partitions)
        self.question = question
        self.times = times

    def _answer(self, question):
        if question == self.question and self.times:
            self.times -= 1
            raise Unavailable(f"It does not answer {question}.")

    def partitions(self):
        self._answer("partitions")
        return super().partitions()

    def position(self, partition, start):
        self._answer("position")
        return super().position(partition, start)

    def open(self, positions, follow):
        self._answer("open")
        return super().open(positions, follow)


def _stream(source, **options):
    options = {"batch_size": 4, "follow": False, "max_delay": 0.1, **options}
    return tf_ext.data.stream(source, _X, **options)


class WaitingTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(
            mock.patch.object(source_waiting, "_PAUSE_SECONDS", 0.01)
        )

    @parameterized.parameters("partitions", "position", "open")
    def test_streams_wait(self, question):
        source = _Away(question, 3)
        source.add("a", b"1", b"2")
        with self.assertLogs("tf_ext", "WARNING") as logs:
            found = [batch["x"].numpy().tolist() for batch in _stream(source)]
        self.assertEqual(found, [[1, 2]])
        self.assertEqual(source.times, 0)
        self.assertLen(logs.output, 1)
        self.assertIn("asked again for 60 seconds: It does not", logs.output[0])

    @parameterized.parameters("partitions", "position", "open")
    def test_not_for_ever(self, question):
        self.enterContext(
            mock.patch.object(source_waiting, "_MOST_SECONDS", 0.1)
        )
        source = _Away(question, 1_000_000)
        source.add("a", b"1")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"SourceUnavailableError: It does not answer {question}",
        ):
            list(_stream(source))
        self.assertLess(source.times, 999_999)

    def test_is_found_in_texts_of_tensorflow(self):
        """Behind a dataset, whose errors are of its own classes."""
        for one in (Unavailable, tf_ext.data.SourceError):
            text = f"{one('It is away.').as_text()} [Op:IteratorGetNext]"
            found = reading_error(text)
            self.assertIs(type(found), one)
            self.assertEqual(found.message, "It is away.")

    def test_fit_raises_its_class(self):
        self.enterContext(
            mock.patch.object(source_waiting, "_MOST_SECONDS", 0.0)
        )
        data = _stream(_Away("partitions", 1)).map(lambda b: (b, b["x"]))
        table = tf_ext.SparseTable("x", dim=1)
        x = keras.Input((), dtype="int64", name="x")
        column = tf_ext.feature_column.category_column("x")
        out = tf_ext.layers.EmbeddingFeatures([column], table)({"x": x})
        model = tf_ext.Model({"x": x}, out)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        with self.assertRaisesRegex(Unavailable, "does not answer partitions"):
            model.fit(data, verbose=0)

    @parameterized.parameters("position", "open")
    def test_partitions_that_appear(self, question):
        source = _Away(question, 0)
        source.add("a", b"1")
        with mock.patch.object(stream_reader, "REFRESH_SECONDS", 0.1):
            batches = iter(_stream(source, follow=True))
            self.assertEqual(next(batches)["x"].numpy().tolist(), [1])
            source.times = 3
            source.add("b", b"2")
            self.assertEqual(next(batches)["x"].numpy().tolist(), [2])
        self.assertEqual(source.times, 0)

    def test_other_errors_are_not_waited_for(self):
        asked = []

        def ask():
            asked.append(None)
            raise tf_ext.data.SourceError("It is none.")

        with self.assertRaisesRegex(tf_ext.data.SourceError, "It is none"):
            when_available(ask)
        self.assertLen(asked, 1)

    def test_what_is_not_wanted_any_more(self):
        source = _Away("partitions", 1_000_000)
        with self.assertRaises(Unavailable):
            when_available(
                source.partitions, goes_on=lambda: source.times > 999_997
            )
        self.assertEqual(source.times, 999_997)

    def test_a_program_ends(self):
        """TensorFlow's thread that waits for the source returns first."""
        text = """if True:
            import atexit
            import os
            import threading
            import time

            def check():  # After what is registered later.
                asked = source.asked
                time.sleep(2)
                if source.asked > asked:
                    os._exit(1)

            atexit.register(check)
            import tf_ext
            from tf_ext.data import source_waiting

            source_waiting._MOST_SECONDS = 1e6

            class Away(tf_ext.data.Source):
                asked = 0

                def partitions(self):
                    self.asked += 1
                    raise tf_ext.data.SourceUnavailableError("It is away.")

                def position(self, partition, start):
                    return 0

                def open(self, positions, follow):
                    raise AssertionError

            source = Away()
            schema = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])
            data = tf_ext.data.stream(source, schema, batch_size=4)
            threading.Thread(
                target=lambda: next(iter(data)), daemon=True
            ).start()
            while source.asked < 2:
                time.sleep(0.01)
        """
        subprocess.run(
            [sys.executable, "-c", text],
            env=program_environment(),
            timeout=120,
            check=True,
        )


class ServersTest(parameterized.TestCase):
    def test_kafka_that_is_not_there(self):
        source = tf_ext.data.KafkaSource("x", "127.0.0.1:1", timeout=0.2)
        for ask in (
            source.partitions,
            lambda: source.position("x/0", "earliest"),
        ):
            with self.assertRaisesRegex(Unavailable, "127.0.0.1:1 answers"):
                ask()

    @parameterized.parameters(
        ("_TRANSPORT", Unavailable),
        ("_ALL_BROKERS_DOWN", Unavailable),
        ("LEADER_NOT_AVAILABLE", Unavailable),
        ("TOPIC_AUTHORIZATION_FAILED", tf_ext.data.SourceError),
        ("UNKNOWN_TOPIC_OR_PART", tf_ext.data.SourceError),
    )
    def test_answers_of_kafka(self, name, expected):
        """A broker that ends while it is asked cannot be made to in a test."""
        error = confluent_kafka.KafkaError(
            getattr(confluent_kafka.KafkaError, name)
        )
        source = tf_ext.data.KafkaSource("x", "127.0.0.1:1")
        raised = confluent_kafka.KafkaException(error)
        asked = mock.Mock()
        asked.list_topics.side_effect = raised
        asked.get_watermark_offsets.side_effect = raised
        found = mock.Mock(error=error, partitions={})
        described = mock.Mock()
        described.list_topics.return_value = mock.Mock(topics={"x": found})
        for consumer, ask in (
            (asked, source.partitions),
            (asked, lambda: source.position("x/0", "latest")),
            (described, source.partitions),
        ):
            source._asking = consumer
            with self.assertRaises(tf_ext.data.SourceError) as raised:
                ask()
            self.assertIs(type(raised.exception), expected)

    def test_redis_that_is_not_there(self):
        source = tf_ext.data.RedisSource("a", "redis://127.0.0.1:1/0")
        for ask in (
            lambda: source.position("a", "latest"),
            lambda: source.open({"a": ["0-0", 0]}, False),
        ):
            with self.assertRaisesRegex(Unavailable, "cannot be read"):
                ask()

    @parameterized.parameters(
        (redis.ConnectionError(), Unavailable),
        (redis.TimeoutError(), Unavailable),
        (redis.BusyLoadingError(), Unavailable),
        (redis.AuthenticationError(), tf_ext.data.SourceError),
        (redis.ResponseError(), tf_ext.data.SourceError),
    )
    def test_answers_of_redis(self, error, expected):
        source = tf_ext.data.RedisSource("a", "redis://127.0.0.1:1/0")
        source._redis = mock.Mock()
        source._redis.xinfo_stream.side_effect = error
        with self.assertRaises(tf_ext.data.SourceError) as raised:
            source.position("a", "latest")
        self.assertIs(type(raised.exception), expected)

    @pytest.mark.slow
    @pytest.mark.skipif(
        redis_server.missing() is not None, reason=redis_server.missing() or ""
    )
    def test_redis_that_begins_later(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        server = redis_server.RedisServer(folder)
        self.addCleanup(server.close)
        server.client.xadd("a", {"value": b"7"})
        self._begins_later(server, tf_ext.data.RedisSource("a", server.url))

    @pytest.mark.slow
    @pytest.mark.skipif(
        kafka_broker.missing() is not None, reason=kafka_broker.missing() or ""
    )
    def test_kafka_that_begins_later(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        broker = kafka_broker.Broker(folder)
        self.addCleanup(broker.close)
        topic = broker.topic()
        kafka_broker.produce(broker.producer, topic, [b"7"])
        source = tf_ext.data.KafkaSource(topic, broker.servers)
        self._begins_later(broker, source)

    def _begins_later(self, server, source):
        if not server.can_be_killed:
            self.skipTest("The server is not ours to kill.")
        server.kill()

        def start():
            time.sleep(1)
            server.start()

        starting = threading.Thread(target=start)
        starting.start()
        found = [batch["x"].numpy().tolist() for batch in _stream(source)]
        starting.join()
        self.assertEqual(found, [[7]])


if __name__ == "__main__":
    absltest.main()
