# SPDX-License-Identifier: Apache-2.0
"""Streams of a real Redis."""

import math
import pickle
import tempfile
import threading
import time
import uuid

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters import redis_server

import tf_ext

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_SCHEMA = Schema(
    [
        Field("x", "int64"),
        Field("user"),
        Field("lang", default="en"),
    ]
)
_ENVELOPE = {"user": "key", "lang": "header:lang"}
_X = Schema([Field("x", "int64")])


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"streams": []}, "`streams`"),
        ({"streams": ["a", "a"]}, "`streams`"),
        ({"url": "localhost"}, "`url`"),
        ({"url": 3}, "`url`"),
        ({"value": ""}, "`value`"),
        ({"key": "value"}, "`value`"),
    )
    def test_arguments(self, changed, named):
        given = {"streams": "a", "url": "redis://localhost:1/0"} | changed
        with self.assertRaisesRegex(ValueError, named):
            tf_ext.data.RedisSource(**given)

    def test_can_be_sent_to_workers(self):
        source = tf_ext.data.RedisSource(
            ["a", "b"], "redis://localhost:1/3", value="body", key="id"
        )
        sent = pickle.loads(pickle.dumps(source))
        self.assertEqual(sent.partitions(), ["a", "b"])
        for name in ("_value", "_key"):
            self.assertEqual(getattr(sent, name), getattr(source, name))
        found, wanted = (
            one._redis.get_connection_kwargs() for one in (sent, source)
        )
        for name in ("host", "port", "db", "decode_responses"):
            self.assertEqual(found[name], wanted[name])

    def test_positions_that_are_none(self):
        source = tf_ext.data.RedisSource("a", "redis://localhost:1/0")
        for position in (3, "1-2", ["3", 1], ["1-2", -1], ["1-2"], None):
            with self.assertRaisesRegex(
                tf_ext.data.SourceError, "must be .id of an entry"
            ):
                source.open({"a": position}, True)

    def test_a_server_that_is_not_there(self):
        source = tf_ext.data.RedisSource("a", "redis://127.0.0.1:1/0")
        with self.assertRaisesRegex(tf_ext.data.SourceError, "cannot be read"):
            source.position("a", "latest")


@pytest.mark.skipif(
    redis_server.missing() is not None, reason=redis_server.missing() or ""
)
class RedisTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.server = redis_server.RedisServer(folder.name)
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        super().setUp()
        self.names = [uuid.uuid4().hex[:8] + end for end in "ab"]
        self.source = tf_ext.data.RedisSource(self.names, self.server.url)
        self.progress = tf_ext.data.StreamProgress()

    def _add(self, stream, *numbers, **fields):
        return [
            self.server.client.xadd(self.names[stream], {"value": n, **fields})
            for n in numbers
        ]

    def _stream(self, schema=_X, **options):
        options = {"batch_size": 4, "follow": False, **options}
        return tf_ext.data.stream(
            self.source, schema, progress=self.progress, **options
        )

    def _all(self, data):
        found = []
        for batch in data:
            found += batch["x"].numpy().tolist()
            self.progress.advance()
        return found

    def test_fields_are_keys_and_headers(self):
        self._add(0, 1, key="ann", lang="de")
        self._add(1, 2, key="b\u00fc", other="x")
        [batch] = self._stream(_SCHEMA, envelope=_ENVELOPE)
        rows = [*zip(*(batch[n].numpy().tolist() for n in batch))]
        self.assertCountEqual(
            rows, [(1, b"ann", b"de"), (2, "b\u00fc".encode(), b"en")]
        )

    def test_positions(self):
        self._add(0, *range(10))
        last = self._add(1, *range(10, 17))[-1].decode()
        data = self._stream()
        first = iter(data)
        seen = next(first)["x"].numpy().tolist()
        self.progress.advance()
        state = self.progress.state()
        rest = self._all(data)
        self.assertCountEqual(seen + rest, range(17))
        self.assertEqual(self.progress.positions[self.names[1]], [last, 7])
        self.assertEqual(self._all(data), [])
        self.progress.restore(state)
        self._add(1, 99)
        self.assertCountEqual(self._all(data), [*rest, 99])
        self.assertAlmostEqual(self.progress.event_time, time.time(), delta=60)

    def test_what_was_trained_on_may_be_trimmed(self):
        ids = self._add(0, *range(8))
        data = self._stream()
        self.assertCountEqual(self._all(data), range(8))
        self.server.client.xtrim(self.names[0], maxlen=0, approximate=False)
        self._add(0, 8)
        self.assertEqual(self._all(data), [8])
        position = [ids[3].decode(), 4]
        self.progress.restore({"positions": {self.names[0]: position}})
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"LostRecordsError: .* entries behind {position[0]}: 4 were",
        ):
            list(data)

    def test_what_was_trimmed_before_training(self):
        self._add(0, *range(8))
        self.server.client.xtrim(self.names[0], maxlen=3, approximate=False)
        self.assertEqual(
            self.source.position(self.names[0], "earliest"), ["0-0", 5]
        )
        self.assertEqual(self._all(self._stream()), [5, 6, 7])

    def test_no_more_than_asked_for_up_to_the_end(self):
        for number in range(2):
            self._add(number, *range(7))
        positions = {
            name: self.source.position(name, "earliest") for name in self.names
        }
        consumer = self.source.open(positions, False)
        for number in range(2):
            self._add(number, 8, 9)
        found = []
        while (some := consumer.poll(5, 0.0)) is not None:
            self.assertLessEqual(len(some), 5)
            found += some
        for name in self.names:
            self.assertEqual(
                [int(one.value) for one in found if one.partition == name],
                [*range(7)],
            )

    def test_trimmed_while_it_is_read(self):
        self._add(0, *range(100))
        positions = {
            name: self.source.position(name, "earliest") for name in self.names
        }
        consumer = self.source.open(positions, True)
        self.assertLen(consumer.poll(10, 0.0), 5)
        self.server.client.xtrim(self.names[0], maxlen=50, approximate=False)
        with self.assertRaises(tf_ext.data.LostRecordsError):
            consumer.poll(10, 0.0)

    def test_deleted_between_others(self):
        ids = self._add(0, *range(6))
        self.server.client.xdel(self.names[0], ids[1])
        data = self._stream()
        # One that was deleted before all is none of the stream.
        self.assertEqual(self._all(data), [0, 2, 3, 4, 5])
        self.assertEqual(self._all(data), [])
        self.server.client.xdel(self.names[0], ids[3])
        new = self._add(0, *range(6, 11))
        self.assertEqual(self._all(data), [*range(6, 11)])
        state = self.progress.state()
        later = self._add(0, 11, 12, 13)
        self.server.client.xdel(self.names[0], new[1], *later[:2])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "LostRecordsError"
        ):
            self._all(data)
        # Also if nothing is left, and in a stream that goes on.
        self.server.client.xdel(self.names[0], later[2])
        self.progress.restore(state)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "LostRecordsError"
        ):
            self._all(data)
        [added] = self._add(0, 14)
        position = [new[-1].decode(), 11]
        consumer = self.source.open({self.names[0]: position}, True)
        [message] = consumer.poll(10, 0.0)
        self.assertEqual(message.position, [added.decode(), 12])
        with self.assertRaises(tf_ext.data.LostRecordsError):
            consumer.poll(10, 0.0)

    def test_streams_made_again(self):
        self._add(0, 1, 2)
        data = self._stream()
        self._all(data)
        self.server.client.delete(self.names[0])
        self.server.client.xadd(self.names[0], {"value": 3}, id="5-1")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "LostRecordsError"
        ):
            list(data)

    def test_keys_that_are_no_streams(self):
        self.server.client.set(self.names[0], "x")
        with self.assertRaisesRegex(
            tf_ext.data.SourceError, "cannot be read: WRONGTYPE"
        ):
            self.source.position(self.names[0], "latest")

    def test_a_password_that_is_changed(self):
        acl = self.server.client.acl_setuser
        acl("trainer", True, passwords=["+old"], keys=["*"], commands=["+@all"])
        address = self.server.url.replace("//", "//trainer:old@")
        source = tf_ext.data.RedisSource(self.names, address)
        names = source.partitions()
        start = {name: source.position(name, "latest") for name in names}
        consumer = source.open(start, True)
        self.assertEmpty(consumer.poll(10, 0.01))
        acl("trainer", True, passwords=["-old", "+new"])
        for client in self.server.client.client_list():
            if client.get("user") == "trainer":
                self.server.client.client_kill_filter(_id=client["id"])
        # Waiting would not help.
        with self.assertRaisesRegex(tf_ext.data.SourceError, "cannot be read"):
            consumer.poll(10, 0.01)

    def test_until_when_streams_were_read(self):
        self._add(0, *range(5))
        self._add(1, 5)
        positions = {name: ["0-0", 0] for name in self.names}
        begin = time.time()
        consumer = self.source.open(positions, True)
        self.assertEmpty(consumer.read_until())
        consumer.poll(4, 0.0)  # Two of each, if there are.
        self.assertEqual([*consumer.read_until()], self.names[1:])
        consumer.poll(3, 0.0)  # Of two again one is returned.
        self.assertLen(consumer.poll(8, 0.0), 1)
        self._check_that_some_is_left()
        until = dict(consumer.read_until())
        self.assertEqual({*until}, {*self.names})
        self.assertBetween(until[self.names[0]], begin, time.time())
        consumer = self.source.open(positions, False)
        for most in (2, 99, 99):
            self.assertEqual(
                set(consumer.read_until().values()) - {math.inf}, set()
            )
            found = consumer.poll(most, 0.0)
        self.assertIsNone(found)
        self.assertLen(consumer.read_until(), 2)

    def _check_that_some_is_left(self):
        """Of 4, 4 and 3 entries 10 are returned: the last stream has more."""
        names = [uuid.uuid4().hex[:8] for _ in range(3)]
        for name, count in zip(names, (4, 4, 3), strict=True):
            for number in range(count):
                self.server.client.xadd(name, {"value": number})
        source = tf_ext.data.RedisSource(names, self.server.url)
        consumer = source.open({name: ["0-0", 0] for name in names}, True)
        self.assertLen(consumer.poll(10, 0.0), 10)
        self.assertEmpty(consumer.read_until())

    def test_a_join_waits_for_a_server(self):
        """Labels of a Redis that is killed and comes back are not lost."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        other = redis_server.RedisServer(folder)
        self.addCleanup(other.close)
        for number in range(200):
            for client, name, shown in (
                (self.server.client, self.names[0], number + 1),
                (other.client, "clicks", number + 6),
            ):
                if client is self.server.client or number % 2:
                    fields = {"value": number, "key": number}
                    client.xadd(name, fields, f"{1000 * shown}-0")
        self.source = tf_ext.data.JoinSource(
            tf_ext.data.RedisSource(self.names[0], self.server.url),
            tf_ext.data.RedisSource("clicks", other.url),
            window=10.0,
        )
        data = self._stream(
            Schema([Field("x", "int64"), Field("joined", "float32")]),
            envelope={"joined": "header:joined"},
            follow=True,
            max_delay=0.1,
        )
        found = {}
        for batch in data:
            if not found:
                other.kill()
                threading.Timer(2.0, other.start).start()
            ids = batch["x"].numpy().tolist()
            found |= zip(ids, batch["joined"].numpy().tolist(), strict=True)
            if len(found) == 200:
                break
        self.assertEqual(found, {n: float(n % 2) for n in range(200)})

    def test_entries_that_come_later(self):
        batches = iter(self._stream(follow=True, start="latest", max_delay=0.1))

        def add(number):
            # Before it has begun, an entry would not be a later one.
            while not self.progress.positions:
                time.sleep(0.01)
            time.sleep(0.3)
            self._add(number % 2, number)

        for number in range(3):
            adding = threading.Thread(target=add, args=[number])
            adding.start()
            self.assertEqual(next(batches)["x"].numpy().tolist(), [number])
            adding.join()

    @pytest.mark.slow
    def test_a_server_that_is_killed(self):
        if not self.server.can_be_killed:
            self.skipTest("TF_EXT_REDIS is not ours to kill.")
        self._add(0, *range(5))
        batches = iter(self._stream(follow=True, max_delay=0.1))
        found = next(batches)["x"].numpy().tolist()
        found += next(batches)["x"].numpy().tolist()
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.server.kill()
            time.sleep(2)
            self.server.start()
            self._add(1, 5)
            found += next(batches)["x"].numpy().tolist()
        self.assertEqual(found, [*range(6)])
        self.assertIn("Redis is waited for", logs.output[0])


if __name__ == "__main__":
    absltest.main()
