# SPDX-License-Identifier: Apache-2.0
"""What a worker reads of a stream, and tells the process that trains."""

import pathlib
import tempfile
import time
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from processes import run_program

import tf_ext
from tf_ext.data import worker_streams
from tf_ext.data.progress import BatchNote

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_X = Schema([Field("x", "int64")])
_SECONDS = tf.constant(60.0, tf.float64)


class Broken(tf_ext.data.Source):
    """A source that cannot be read, as `kind` says."""

    def __init__(self, kind):
        self._kind = kind

    def partitions(self):
        return ["all"]

    def position(self, partition, start):
        return 0

    def open(self, positions, follow):
        if self._kind == "lost":
            raise tf_ext.data.LostRecordsError("Records 3 to 7 are gone.")
        raise OSError("No route to the queue")


class _Share:
    """A share of a worker in this process."""

    number = 0

    def __init__(self, source, schema=_X, **options):
        type(self).number += 1
        self._share = f"share-{self.number}"
        self._readings = 0
        self._tell = tf.function(worker_streams.tell)
        self.name = tf.constant("")

        def make(name):
            context = worker_streams.WorkerContext(1, 0, name)
            data = tf_ext.data.stream(
                source,
                schema,
                shard=context,
                **{"batch_size": 4, "follow": False, **options},
            )
            [self._made] = context.streams
            return data.map(lambda batch: batch["x"])

        self._make = tf.function(make, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.string)
        )

    def open(self, positions, again=None):
        """Begins to read; the iterator of batches."""
        self._readings += 1
        self.name = tf.constant(
            worker_streams.reading_name(self._share, self._readings)
        )
        worker_streams.open_reading(
            self.name, self._made.text, positions, again
        )
        return iter(self._make(self.name))

    def told(self, done=0, seconds=_SECONDS, name=None):
        name = self.name if name is None else name
        return worker_streams.told(self._tell(name, done, seconds).numpy())


def _end_readings():
    for reading in worker_streams._READINGS._known.values():
        reading.close()


class WorkerStreamTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(_end_readings)
        folder = tempfile.TemporaryDirectory()
        self._folder = pathlib.Path(self.enterContext(folder))

    def _write(self, **files):
        """Appends files with lines to partitions."""
        for name, lines in files.items():
            place = self._folder / name
            place.mkdir(exist_ok=True)
            count = len(list(place.iterdir()))
            (place / f"{count:03}").write_text("".join(f"{n}\n" for n in lines))

    def _share(self, **options):
        source = tf_ext.data.DirectorySource(self._folder)
        return _Share(source, **options)

    def _begin(self, *names):
        source = tf_ext.data.DirectorySource(self._folder)
        return {name: source.position(name, "earliest") for name in names}

    def test_batches_and_what_is_told_of_them(self):
        self._write(a=range(6), b=[6, 7, "x", 9], c=[100])
        share = self._share(max_errors=1.0)
        batches = share.open(self._begin("a", "b"))
        found, positions, malformed = [], {}, []
        told = share.told()
        while told != "end":
            batch = next(batches).numpy().tolist()
            self.assertEqual(told.note.records, len(batch))
            self.assertLessEqual(len(batch), 4)
            found += batch
            positions |= told.note.positions
            malformed += told.malformed
            told = share.told(done=1)
        self.assertCountEqual(found, [0, 1, 2, 3, 4, 5, 6, 7, 9])
        self.assertEqual(positions, {"a": ["000", None], "b": ["000", None]})
        bad = [one for _, _, some in malformed for one in some]
        self.assertLen(bad, 1)
        self.assertEqual(bad[0].reason, "bad number")
        self.assertEqual(sum(records for _, records, _ in malformed), 10)
        self.assertIsNone(next(batches, None))

    def test_positions_that_are_told_are_those_of_the_batch(self):
        self._write(a=range(10))
        share = self._share()
        batches = share.open(self._begin("a"))
        told = share.told()
        for step in range(2):
            next(batches)
            self.assertEqual(told.note.positions, {"a": ["000", 4 * step + 4]})
            self.assertEqual(told.note.messages, {"a": 4})
            told = share.told(done=1)
        # It does not move on by being asked.
        self.assertEqual(share.told(), told)

    def test_the_same_batch_again(self):
        self._write(a=["x", 1, 2], b=[3, "y", 5, 6], c=[7, 8])
        share = self._share(max_errors=1.0)
        begin = self._begin("a", "b", "c")
        batches = share.open(begin)
        first = share.told().note
        wanted = next(batches).numpy().tolist()
        # More has come meanwhile, which would have filled it.
        self._write(a=range(20, 30), b=range(30, 40))
        batches = share.open(begin, first)
        self.assertEqual(share.told().note.messages, first.messages)
        self.assertCountEqual(next(batches).numpy().tolist(), wanted)
        rest = []
        told = share.told(done=1)
        while told != "end":
            rest += next(batches).numpy().tolist()
            told = share.told(done=1)
        self.assertCountEqual(
            wanted + rest, [1, 2, 3, 5, 6, 7, 8, *range(20, 40)]
        )

    def test_a_batch_again_of_messages_that_have_no_record_before(self):
        self._write(a=["x"] * 9 + [1, 2])
        share = self._share(max_errors=1.0, batch_size=3)
        begin = self._begin("a")
        batches = share.open(begin)
        first = share.told()
        wanted = next(batches).numpy().tolist()
        self.assertEqual(sum(len(bad) for _, _, bad in first.malformed), 9)
        self._write(a=range(20, 30))
        batches = share.open(begin, first.note)
        self.assertEqual(share.told().note, first.note)
        self.assertEqual(next(batches).numpy().tolist(), wanted)

    def test_the_same_batch_waits_for_its_messages(self):
        self._write(a=[1, 2])
        share = self._share(follow=True)
        note = BatchNote({"a": ["001", None]}, 3, None, None, {"a": 3})
        batches = share.open(self._begin("a"), note)
        nothing = tf.constant(0.3, tf.float64)
        self.assertIsNone(share.told(seconds=nothing))
        self._write(a=[3])
        self.assertEqual(share.told().note.records, 3)
        self.assertEqual(next(batches).numpy().tolist(), [1, 2, 3])

    def test_nothing_comes_yet(self):
        self._write(a=[])
        share = self._share(follow=True, max_delay=0.1)
        batches = share.open(self._begin("a"))
        self.assertIsNone(share.told(seconds=tf.constant(0.0, tf.float64)))
        self._write(a=[5])
        self.assertEqual(share.told().note.records, 1)
        self.assertEqual(next(batches).numpy().tolist(), [5])

    @parameterized.parameters(
        ("lost", "LostRecordsError: Records 3 to 7 are gone."),
        ("away", "OSError: No route to the queue"),
    )
    def test_errors(self, kind, text):
        share = _Share(Broken(kind))
        batches = share.open({"all": 0})
        for _ in range(2):
            with self.assertRaises(worker_streams.WorkerReadingError) as raised:
                share.told()
            self.assertEqual(str(raised.exception), text)
        self.assertIsNone(next(batches, None))

    def test_too_many_errors(self):
        self._write(a=["x"] * 1200)
        share = self._share()
        share.open(self._begin("a"))
        with self.assertRaisesRegex(
            worker_streams.WorkerReadingError, "^TooManyErrorsError: "
        ):
            share.told()

    def test_what_a_worker_cannot_open(self):
        name = tf.constant("other#1")
        with self.assertRaisesRegex(
            worker_streams.WorkerReadingError, "^UnpicklingError: "
        ):
            worker_streams.open_reading(name, b"no pickle", {}, None)

    def test_what_cannot_be_sent(self):
        class Local(Broken):
            pass

        with self.assertRaisesRegex(
            ValueError, "`source`, `schema` and `format` of stream.*pickle"
        ):
            _Share(Local("lost"))

    def test_a_source_of_the_program_itself(self):
        with (
            mock.patch.object(Broken, "__module__", "__main__"),
            self.assertRaisesRegex(
                ValueError, "`source` of stream must be of a class of a module"
            ),
        ):
            _Share(Broken("lost"))

    def test_readings_that_were_forgotten(self):
        self._write(a=range(100))
        share = self._share()
        with mock.patch.object(worker_streams, "_FORGOTTEN_SECONDS", 0.2):
            batches = share.open(self._begin("a"))
            deadline = time.monotonic() + 60
            with self.assertRaises(worker_streams.ForgottenError):
                # What has been read ahead is still there.
                while time.monotonic() < deadline:
                    time.sleep(0.5)
                    share.told(done=1)
        self.assertLess(len(list(batches)), 5)

    def test_one_reading_of_a_share(self):
        self._write(a=range(100))
        share = self._share()
        share.open(self._begin("a"))
        before = share.name
        share.open(self._begin("a"))
        self.assertEqual(share.told().note.records, 4)
        with self.assertRaises(worker_streams.ForgottenError):
            share.told(name=before)
        other = self._share()
        other.open(self._begin("a"))
        self.assertEqual(share.told().note.records, 4)


_TWO_CLUSTERS = """
import pathlib
import tempfile

import tf_ext
from tf_ext._keras import keras

Field = tf_ext.data.Field
schema = tf_ext.data.Schema(
    [Field("id", "int64"), Field("label", "float32")], label="label"
)
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "part-0").write_text("".join(f"{n},1\\n" for n in range(100)))


def share(context):
    return tf_ext.data.stream(
        tf_ext.data.DirectorySource(folder),
        schema,
        batch_size=16,
        shard=context,
        follow=False,
    )


for _ in range(2):
    with tf_ext.distribute.local_cluster(workers=1, ps=1) as cluster:
        with cluster.strategy().scope():
            table = tf_ext.SparseTable("rows", 1)
            column = tf_ext.feature_column.category_column("id")
            inputs = {"id": keras.Input([], dtype="int64", name="id")}
            rows = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
            model = tf_ext.Model(inputs, rows)
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        model.fit(share, verbose=0)
        print(table.size(), "rows")
"""


@pytest.mark.slow
class ClustersTest(absltest.TestCase):
    def test_two_one_after_the_other(self):
        with tempfile.TemporaryDirectory() as folder:
            found = run_program(_TWO_CLUSTERS, folder, 150)
        self.assertEqual(found.splitlines()[-2:], ["100 rows"] * 2)


if __name__ == "__main__":
    absltest.main()
