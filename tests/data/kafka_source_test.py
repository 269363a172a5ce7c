# SPDX-License-Identifier: Apache-2.0
"""Streams of Kafka: on librdkafka's broker for tests, and on a real one."""

import contextlib
import json
import math
import pickle
import tempfile
import threading
import time

import pytest
from absl.testing import absltest, parameterized
from clusters import kafka_broker
from models import id_counting_models as models

import tf_ext

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_SCHEMA = Schema(
    [
        Field("id", "int64"),
        Field("user"),
        Field("lang", default="en"),
        Field("age", "int32", default=-1),
        Field("click", "float32"),
    ],
    label="click",
)
_ENVELOPE = {"user": "key", "lang": "header:lang", "age": "header:age"}


def _json(number):
    return json.dumps({"id": number, "click": 1.0}).encode()


class MockTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.broker = kafka_broker.MockBroker()

    def setUp(self):
        super().setUp()
        self.topic = self.broker.topic()
        self.source = tf_ext.data.KafkaSource(self.topic, self.broker.servers)
        self.progress = tf_ext.data.StreamProgress()

    def test_can_be_sent_to_workers(self):
        self.assertLen(self.source.partitions(), 4)  # It has asked.
        sent = pickle.loads(pickle.dumps(self.source))
        self.assertEqual(sent.partitions(), self.source.partitions())

    def _send(self, values, **options):
        kafka_broker.produce(
            self.broker.producer, self.topic, values, **options
        )

    def _stream(self, schema=_SCHEMA, format="jsonl", **options):
        options = {"batch_size": 8, "follow": False, **options}
        return tf_ext.data.stream(
            self.source, schema, format, progress=self.progress, **options
        )

    def _ids(self, data):
        found = []
        for features, _ in data:
            found += features["id"].numpy().tolist()
            self.progress.advance()
        return found

    def test_keys_and_headers(self):
        self._send([_json(1)], key=b"ann", headers={"lang": b"de", "age": b"7"})
        headers = {"lang": None}  # As if it had none.
        self._send([_json(2)], key="b\u00fc", headers=headers, partition=0)
        self._send([_json(3)], key=b"cem", headers={"age": b"x"}, partition=0)
        errors = tf_ext.data.ReadErrors()
        data = self._stream(envelope=_ENVELOPE, errors=errors, max_errors=0.5)
        [(features, labels)] = data
        self.assertEqual(
            [*zip(*(features[n].numpy().tolist() for n in features))],
            [(1, b"ann", b"de", 7), (2, "b\u00fc".encode(), b"en", -1)],
        )
        self.assertEqual(labels.numpy().tolist(), [1.0, 1.0])
        self.assertEqual(errors.by_reason(), {"bad number": 1})
        self.assertEqual(errors.records, 3)

    def test_times(self):
        for milliseconds in (1_000_250, 1_000_500):
            self._send([_json(1)], timestamp=milliseconds)
        self.assertLen(self._ids(self._stream(envelope=_ENVELOPE)), 2)
        self.assertEqual(self.progress.event_time, 1000.5)

    def test_no_more_than_asked_for(self):
        self._send(map(_json, range(3000)), partition=2)
        name = f"{self.topic}/2"
        with contextlib.closing(self.source.open({name: 10}, False)) as some:
            found = []
            while (messages := some.poll(1500, 1.0)) is not None:
                self.assertLessEqual(len(messages), 1500)
                found += messages
        self.assertEqual(found.pop()[:3], (name, 3000, None))
        self.assertEqual(
            [one[:3] for one in found],
            [(name, n + 1, _json(n)) for n in range(10, 3000)],
        )

    def test_positions(self):
        self._send(map(_json, range(20)))
        data = self._stream(envelope=_ENVELOPE, max_errors=1.0)
        # Positions are those of batches, so a record follows the wrong ones.
        wrong = [b"{", None, b'{"id": "x"}']
        self._send([*wrong, _json(20)], partition=1)
        first = iter(data)
        seen = next(first)[0]["id"].numpy().tolist()
        self.progress.advance()
        del first
        state = json.loads(json.dumps(self.progress.state()))
        rest = self._ids(data)
        self.assertCountEqual(seen + rest, range(21))
        self.assertEqual(
            self.progress.state()["positions"],
            {f"{self.topic}/{n}": 9 if n == 1 else 5 for n in range(4)},
        )
        self.assertEqual(self._ids(data), [])
        self.progress.restore(state)
        self.assertCountEqual(self._ids(data), rest)
        self.assertLess(self.progress.lag().most, 600)

    def test_until_when_partitions_were_read(self):
        self._send([_json(1)], partition=1)
        names = self.source.partitions()
        begin = time.time()
        with contextlib.closing(
            self.source.open(dict.fromkeys(names, 0), True)
        ) as some:
            self.assertNotIn(f"{self.topic}/1", some.read_until())
            found = []
            while len(some.read_until()) < 4:
                found += some.poll(8, 0.1)
            self.assertLen(found, 1)
            until = dict(some.read_until())
            self.assertBetween(min(until.values()), begin, time.time())
            # It is not asked too often.
            self.assertEqual(some.read_until(), until)
            self._send([_json(2)], partition=2)
            while some.read_until()[names[0]] == until[names[0]]:
                time.sleep(0.1)
            later = some.read_until()
            self.assertEqual(later[names[2]], until[names[2]])
            self.assertGreater(later[names[1]], until[names[1]])
        with contextlib.closing(
            self.source.open(dict.fromkeys(names, 0), False)
        ) as some:
            while some.poll(8, 0.1) is not None:
                for name, until in some.read_until().items():
                    self.assertEqual(until, math.inf, name)
            self.assertLen(some.read_until(), 4)

    def test_joined_with_what_waits_in_the_topics(self):
        """Until records come, an empty poll does not tell that none waits."""
        clicks, partitions = self.broker.topic(), 4
        for number in range(400):
            options = dict(
                key=b"%d" % number,
                partition=number % partitions,
                timestamp=1000 * (number + 1),
            )
            self._send([_json(number)], **options)
            if number % 3 == 0:
                kafka_broker.produce(
                    self.broker.producer, clicks, [b"{}"], **options
                )
        source = tf_ext.data.JoinSource(
            self.source,
            tf_ext.data.KafkaSource(clicks, self.broker.servers),
            window=10.0,
        )
        names = dict.fromkeys(source.partitions(), 0)
        found = {}
        with contextlib.closing(source.open(names, True)) as some:
            while len(found) < 400:
                for one in some.poll(20, 0.1):
                    if one.value is not None:
                        found[int(one.key)] = float(one.headers["joined"])
        self.assertEqual(found, {n: float(n % 3 == 0) for n in range(400)})

    def test_latest(self):
        self._send(map(_json, range(8)))
        data = self._stream(
            envelope=_ENVELOPE, start="latest", follow=True, max_delay=0.2
        )
        found = []

        def send():
            while not self.progress.positions:
                time.sleep(0.01)
            time.sleep(0.3)
            self._send(map(_json, range(100, 103)))

        sender = threading.Thread(target=send)
        sender.start()
        for features, _ in data:
            found += features["id"].numpy().tolist()
            if len(found) == 3:
                break
        sender.join()
        self.assertCountEqual(found, range(100, 103))

    def test_records_that_are_gone(self):
        self._send(map(_json, range(8)))
        data = self._stream(models.SCHEMA, "csv")
        self.progress.restore({"positions": {f"{self.topic}/0": 99}})
        with self.assertRaisesRegex(
            tf_ext.data.LostRecordsError, "does not have the record"
        ):
            model, _ = models.counting_model()
            model.fit(data, verbose=0)

    def test_topics_that_there_are_not(self):
        source = tf_ext.data.KafkaSource("x", "127.0.0.1:1", timeout=0.2)
        with self.assertRaisesRegex(
            tf_ext.data.SourceError, "The partitions of the topic 'x' are not"
        ):
            source.partitions()

    @parameterized.parameters(
        ({"topics": []}, "`topics`"),
        ({"topics": ["a", "a"]}, "`topics`"),
        ({"servers": ""}, "`servers`"),
        ({"timeout": 0}, "`timeout`"),
        ({"config": {"auto.offset.reset": "latest"}}, "`config`"),
        ({"config": 3}, "`config`"),
    )
    def test_arguments(self, changed, named):
        given = {"topics": "t", "servers": "localhost:9092"} | changed
        with self.assertRaisesRegex(ValueError, named):
            tf_ext.data.KafkaSource(**given)

    def test_settings_that_are_fixed(self):
        """Kafka would keep positions, or hand out partitions, by itself."""
        fixed = {
            "auto.offset.reset": "error",
            "bootstrap.servers": "localhost:9092",
            "enable.auto.commit": True,
            "enable.auto.offset.store": True,
            "enable.partition.eof": True,
            "group.id": "mine",
            "group.protocol": "consumer",
        }
        allowed = f"must be a dict without {', '.join(fixed)}. Received"
        for name, value in fixed.items():
            with self.assertRaisesRegex(ValueError, f"`config` .*{allowed}"):
                tf_ext.data.KafkaSource("t", "localhost:9092", {name: value})

    def test_positions_that_are_none(self):
        for position in (-1, "3", True, None, 1.5):
            with self.assertRaisesRegex(
                tf_ext.data.SourceError, "must be an offset"
            ):
                self.source.open({f"{self.topic}/0": position}, True)


@pytest.mark.slow
@pytest.mark.skipif(
    kafka_broker.missing() is not None, reason=kafka_broker.missing() or ""
)
class BrokerTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.broker = kafka_broker.Broker(folder.name)
        cls.addClassCleanup(cls.broker.close)

    def test_aborted_transactions(self):
        topic = self.broker.topic()
        producer = type(self.broker.producer)(
            {
                "bootstrap.servers": self.broker.servers,
                "transactional.id": topic,
            }
        )
        producer.init_transactions(30)
        for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin_transaction()
            for _ in range(10):
                producer.produce(topic, value, partition=0)
            producer.flush(30)
            if commit:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        progress = tf_ext.data.StreamProgress()
        data = tf_ext.data.stream(
            tf_ext.data.KafkaSource(topic, self.broker.servers),
            Schema([Field("x", "int64")]),
            batch_size=64,
            follow=False,
            progress=progress,
        )
        found = []
        for batch in data:
            found += batch["x"].numpy().tolist()
            progress.advance()
        self.assertEqual(found, [1] * 10 + [3] * 10)
        self.assertEmpty(list(data))
        # Behind the last record is the mark of its transaction.
        source = tf_ext.data.KafkaSource(topic, self.broker.servers)
        name = f"{topic}/0"
        with contextlib.closing(source.open({name: 0}, True)) as some:
            deadline = time.monotonic() + 60
            while name not in some.read_until():
                self.assertLess(time.monotonic(), deadline)
                some.poll(64, 0.1)


if __name__ == "__main__":
    absltest.main()
