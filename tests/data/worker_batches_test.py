# SPDX-License-Identifier: Apache-2.0
"""How a dataset of global batches is shared between workers."""

import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext.data import worker_batches as batches

pytestmark = pytest.mark.slow_tests(
    "CutBatchesTest::test_cuts_each_batch_into_one_a_worker[34578]",
    "WorkerShareTest::test_every_sample_once_and_in_order1[0123456789]",
    "WorkerShareTest::test_every_sample_once_and_in_order2[0123456789]",
    "WorkerShareTest::test_every_sample_once_and_in_order3[0123456789]",
    "WorkerShareTest::test_every_sample_once_and_in_order4[01234567]",
    "WorkerShareTest::test_every_sample_once_and_in_order[1456789]",
)


def _dense(values):
    return tf.constant(values, tf.int64)


def _ragged(values):
    # Sample v has v % 4 values, all of them v.
    values = np.asarray(values, np.int64)
    return tf.RaggedTensor.from_row_lengths(
        np.repeat(values, values % 4), values % 4
    )


def _sparse(values):
    values = np.asarray(values, np.int64)
    rows = np.arange(len(values))
    return tf.SparseTensor(
        np.stack([rows, values % 5], 1), values, [len(values), 5]
    )


_KINDS = {"dense": _dense, "ragged": _ragged, "sparse": _sparse}


def _rows(tensor):
    """The samples of a tensor, as lists."""
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse.to_dense(tensor)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_list()
    return tensor.numpy().tolist()


def _batches(kind, sizes):
    """A dataset of batches of the given sizes, of the numbers from 0 on."""
    ends = np.cumsum([0, *sizes])
    make = _KINDS[kind]
    whole = [make(range(a, b)) for a, b in itertools.pairwise(ends)]
    spec = make([]).__class__
    if spec is tf.RaggedTensor:
        spec = tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1)
    elif spec is tf.SparseTensor:
        spec = tf.SparseTensorSpec([None, 5], tf.int64)
    else:
        spec = tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(whole), output_signature=spec
    )
    return dataset, whole


class InStepTest(tf.test.TestCase, parameterized.TestCase):
    def test_forgets_the_size_of_batches_only(self):
        features = {
            "dense": tf.zeros([6, 3]),
            "ids": tf.range(6),
            "ragged": _ragged(range(6)),
            "sparse": _sparse(range(6)),
        }
        dataset = tf.data.Dataset.from_tensor_slices(features).batch(
            2, drop_remainder=True
        )
        relaxed = tf_ext.data.variable_batch_size(dataset)
        spec = dict(relaxed.element_spec)
        sparse = spec.pop("sparse")
        self.assertIsInstance(sparse, tf.SparseTensorSpec)
        self.assertEqual(sparse.shape.as_list(), [None, 5])
        self.assertEqual(sparse.dtype, tf.int64)
        self.assertEqual(
            spec,
            {
                "dense": tf.TensorSpec([None, 3], tf.float32),
                "ids": tf.TensorSpec([None], tf.int32),
                "ragged": tf.RaggedTensorSpec([None, None], tf.int64, 1),
            },
        )
        for one, other in zip(relaxed, dataset, strict=True):
            for name, value in one.items():
                self.assertEqual(_rows(value), _rows(other[name]))

    def test_keeps_options(self):
        options = tf.data.Options()
        off = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = off
        dataset = tf.data.Dataset.range(4).batch(2).with_options(options)
        relaxed = tf_ext.data.variable_batch_size(dataset)
        self.assertEqual(
            relaxed.options().experimental_distribute.auto_shard_policy, off
        )

    def test_keeps_shapes_that_nobody_knows(self):
        spec = tf.TensorSpec(None, tf.float32)
        self.assertEqual(batches.relaxed_spec((spec,)), (spec,))


class WorkerShareTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        kind=sorted(_KINDS), workers=[1, 2, 3, 5], first=[0, 1, 4, 8]
    )
    def test_every_sample_once_and_in_order(self, kind, workers, first):
        # Fewer samples than workers among them, and none.
        dataset, whole = _batches(kind, [first, workers - 1, 7, 0])
        parts = [
            list(tf_ext.data.worker_share(dataset, workers, worker))
            for worker in range(workers)
        ]
        for part in parts:
            self.assertLen(part, len(whole))
        for index, batch in enumerate(whole):
            rows = [_rows(part[index]) for part in parts]
            self.assertEqual(list(itertools.chain(*rows)), _rows(batch))
            sizes = [len(some) for some in rows]
            self.assertLessEqual(max(sizes) - min(sizes), 1)

    def test_cuts_all_features_alike(self):
        features = {kind: make(range(7)) for kind, make in _KINDS.items()}
        labels = tf.range(7.0)
        dataset = tf.data.Dataset.from_tensors((features, labels))
        for worker, expected in enumerate(([0, 1], [2, 3], [4, 5, 6])):
            [(part, its_labels)] = tf_ext.data.worker_share(dataset, 3, worker)
            self.assertAllEqual(its_labels, expected)
            self.assertEqual(batches.batch_size_of(part), len(expected))
            for kind, value in part.items():
                self.assertEqual(
                    _rows(value), [_rows(features[kind])[i] for i in expected]
                )

    @parameterized.parameters(1, 2, 3)
    def test_keeps_a_tuple_of_features_alone(self, count):
        # Keras takes `(features,)` for features, and these may be a tuple.
        features = tuple(tf.range(5) + 10 * i for i in range(count))
        dataset = tf.data.Dataset.from_tensors((features,))
        shares = [
            tf_ext.data.worker_share(dataset, 2, 1),
            batches.cut_batches(dataset, 2).skip(1),
        ]
        for share in shares:
            [(found,)] = share.as_numpy_iterator()
            self.assertLen(found, count)
            for index, values in enumerate(found):
                self.assertAllEqual(values, 10 * index + np.arange(2, 5))

    def test_goes_over_batches_of_a_static_size(self):
        dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
        share = tf_ext.data.worker_share(dataset, 3, 0)
        self.assertEqual(share.element_spec.shape, [None])
        self.assertEqual([_rows(part) for part in share], [[0], [4]])
        self.assertEqual(share.cardinality(), 2)


class BatchSizeTest(tf.test.TestCase):
    def test_rows_are_counted_whatever_their_width(self):
        sparse = tf.SparseTensor([[1, 6]], [3], [5, 7])
        for batch in (sparse, tf.zeros([5, 7]), tf.ragged.constant([[1]] * 5)):
            for one in (batch, {"weight": tf.zeros([]), "x": batch}):
                self.assertEqual(batches.batch_size_of(one), 5)
            self.assertEqual(batches.known_batch_size(batch), 5)


class CutBatchesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=sorted(_KINDS), workers=[1, 2, 3])
    def test_cuts_each_batch_into_one_a_worker(self, kind, workers):
        dataset, whole = _batches(kind, [5, 0, 1, workers])
        parts = [_rows(part) for part in batches.cut_batches(dataset, workers)]
        self.assertLen(parts, workers * len(whole))
        for index, batch in enumerate(whole):
            mine = parts[index * workers : (index + 1) * workers]
            self.assertEqual(list(itertools.chain(*mine)), _rows(batch))


class ShardFilesTest(tf.test.TestCase):
    def _dataset(self, files, batch_size=2):
        folder = pathlib.Path(self.get_temp_dir()) / str(files)
        folder.mkdir()
        for index in range(files):
            lines = [f"{index} {line}" for line in range(index + 1)]
            (folder / f"{index}.txt").write_text("\n".join(lines))
        paths = sorted(map(str, folder.iterdir()))
        dataset = tf.data.Dataset.from_tensor_slices(paths)
        return dataset.flat_map(tf.data.TextLineDataset).batch(batch_size)

    def _lines(self, dataset):
        return [line for batch in dataset.as_numpy_iterator() for line in batch]

    def test_every_file_once(self):
        dataset = self._dataset(5)
        every = self._lines(dataset)
        for workers in (1, 2, 5):
            parts = [
                self._lines(batches.shard_files(dataset, workers, worker))
                for worker in range(workers)
            ]
            self.assertCountEqual(list(itertools.chain(*parts)), every)
            files = [{line.split()[0] for line in part} for part in parts]
            self.assertLen(set().union(*files), sum(map(len, files)))

    def test_takes_tensors_of_other_kinds_along(self):
        dataset = self._dataset(2).map(
            lambda lines: {
                "words": tf.strings.split(lines),
                "sparse": tf.strings.split(lines).to_sparse(),
            }
        )
        share = batches.shard_files(dataset, 2, 1)
        self.assertEqual(share.element_spec, dataset.element_spec)
        [batch] = share
        self.assertEqual(batch["words"].to_list(), [[b"1", b"0"], [b"1", b"1"]])
        self.assertAllEqual(
            tf.sparse.to_dense(batch["sparse"]), batch["words"].to_tensor()
        )

    def test_refuses_fewer_files_than_workers(self):
        with self.assertRaisesRegex(tf.errors.OpError, "not enough .*files"):
            batches.shard_files(self._dataset(2), 3, 0)

    def test_refuses_data_of_no_files(self):
        with self.assertRaisesRegex(tf.errors.OpError, "unshardable source"):
            batches.shard_files(tf.data.Dataset.range(8).batch(2), 2, 0)


class BlankBatchTest(tf.test.TestCase, parameterized.TestCase):
    def test_samples_of_a_blank_batch(self):
        dense, text, ragged, sparse = batches.blank_batch(
            (
                tf.TensorSpec([None, None, 3], tf.int64),
                tf.TensorSpec([5], tf.string),
                tf.RaggedTensorSpec([None, None, None, 4], ragged_rank=2),
                tf.SparseTensorSpec([None, 7], tf.float32),
            ),
            samples=2,
        )
        self.assertAllEqual(dense, np.zeros([2, 1, 3]))
        self.assertAllEqual(text, [b""] * 5)
        self.assertAllEqual(ragged.shape, [2, None, None, 4])
        self.assertAllEqual(ragged.row_lengths(), [0, 0])
        self.assertAllEqual(sparse.dense_shape, [2, 7])

    @parameterized.parameters(
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([4, 3], tf.float32),
        tf.TensorSpec([None, None, 2], tf.int64),
        tf.RaggedTensorSpec([None, None], tf.int64, 1),
        tf.RaggedTensorSpec([4, None, None], tf.string, 2, tf.int32),
        tf.RaggedTensorSpec([None, None, 3], tf.float32, 1),
        tf.SparseTensorSpec([None, 5], tf.int64),
        tf.SparseTensorSpec([None, None, 2], tf.string),
    )
    def test_has_no_samples_and_the_same_specification(self, spec):
        # As a step takes it.
        relaxed = batches.relaxed_spec(spec)
        empty = batches.blank_batch((relaxed, {"label": relaxed}), 0)
        self.assertEqual(batches.batch_size_of(empty), 0)
        self.assertTrue(relaxed.is_compatible_with(empty[0]), empty[0])

        @tf.function(input_signature=[relaxed])
        def same(batch):
            return batch

        self.assertEqual(batches.batch_size_of(same(empty[1]["label"])), 0)


if __name__ == "__main__":
    tf.test.main()
