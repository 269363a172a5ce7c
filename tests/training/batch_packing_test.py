# SPDX-License-Identifier: Apache-2.0
"""How the tensors of a batch are sent to a worker."""

import tensorflow as tf

from tf_ext.training.parameter_servers.batch_packing import Joining, Packing


class PackingTest(tf.test.TestCase):
    def packed(self, specs, batch):
        """The tensors of a batch, and the function that a worker runs."""
        packing = Packing(specs)
        packed = packing.pack(batch)
        self.assertLen(packed, len(packing.signature))
        for tensor, spec in zip(packed, packing.signature, strict=True):
            self.assertTrue(spec.is_compatible_with(tensor))
        function = tf.function(
            packing.unpack, input_signature=[tuple(packing.signature)]
        )
        return packed, function

    def assert_same(self, found, batch):
        tf.nest.assert_same_structure(found, batch, expand_composites=True)
        for one, other in zip(
            tf.nest.flatten(found, expand_composites=True),
            tf.nest.flatten(batch, expand_composites=True),
            strict=True,
        ):
            self.assertAllEqual(one, other)
            self.assertEqual(one.dtype, other.dtype)

    def test_there_and_back(self):
        batch = {
            "scalar": tf.constant(3),
            "matrix": tf.constant([[1.0, 2.0], [3.0, 4.0]]),
            "strings": tf.constant([["a"], [""]]),
            "flags": (tf.constant([True, False]), tf.zeros([0, 3])),
            "ragged": tf.ragged.constant([[[1], []], [[2, 3]]]),
            "sparse": tf.sparse.from_dense([[0, 5], [6, 0]]),
            "words": tf.ragged.constant([["b", "c"], ["d"]]),
            "small": tf.constant([1.5, -2.5], tf.bfloat16),
            "bytes": tf.constant([1, 255], tf.uint8),
        }
        specs = tf.nest.map_structure(tf.type_spec_from_value, batch)
        specs["matrix"] = tf.TensorSpec([None, None])
        specs["strings"] = tf.TensorSpec([None, 1], tf.string)
        packed, function = self.packed(specs, batch)
        self.assert_same(function(packed), batch)

    def test_batches_of_any_size_have_static_shapes(self):
        spec = (
            {
                "ids": tf.TensorSpec([None, 3], tf.int64),
                "words": tf.TensorSpec([None, 2], tf.string),
            },
            tf.TensorSpec([None], tf.bool),
            tf.TensorSpec([None, 1]),
        )
        traced = []
        packing = Packing(spec)

        @tf.function(input_signature=[tuple(packing.signature)])
        def unpack(packed):
            batch = packing.unpack(packed)
            traced.append([x.shape.as_list() for x in tf.nest.flatten(batch)])
            return batch

        for size in (4, 1, 0):
            batch = tf.nest.map_structure(
                lambda s, size=size: tf.zeros([size, *s.shape[1:]], s.dtype),
                spec,
            )
            self.assert_same(unpack(packing.pack(batch)), batch)
        self.assertEqual(traced, [[[None, 3], [None, 2], [None], [None, 1]]])

    def test_numbers_are_one_tensor_which_one_op_takes_apart(self):
        batch = [tf.ones([2, i + 1], tf.int64) for i in range(5)]
        specs = [tf.TensorSpec([None, i + 1], tf.int64) for i in range(5)]
        packed, function = self.packed(specs, batch)
        self.assertLen(packed, 1)
        graph = function.get_concrete_function().graph
        self.assertCountEqual(
            [op.type for op in graph.get_operations() if op.type != "Identity"],
            ["Placeholder", "TfExt>Unbundle"],
        )

    def test_what_another_task_sends_is_checked(self):
        specs = {
            "ids": tf.TensorSpec([None, 2], tf.int64),
            "words": tf.TensorSpec([None], tf.string),
        }
        batch = {"ids": tf.ones([2, 2], tf.int64), "words": tf.fill([2], "a")}
        (bundle, words), function = self.packed(specs, batch)
        [other, _] = Packing(specs).pack({**batch, "words": tf.fill([3], "a")})
        others = Packing([tf.TensorSpec([2, 3], tf.int64)])
        [wide] = others.pack([tf.ones([2, 3], tf.int64)])
        for case, sent in {
            "cut off": (bundle[:-64], words),
            "empty": (bundle[:0], words),
            "too few strings": (bundle, words[:1]),
            "too many strings": (bundle, tf.concat([words, words], 0)),
            "another number of strings": (other, words),
            "other values": (wide, words),
        }.items():
            with (
                self.subTest(case),
                self.assertRaises(tf.errors.InvalidArgumentError),
            ):
                function(sent)

    def test_an_unknown_rank_is_refused(self):
        with self.assertRaisesRegex(
            ValueError, "must have a known rank.*ensure"
        ):
            Packing(tf.TensorSpec(None))

    def test_other_types_are_refused(self):
        with self.assertRaisesRegex(
            ValueError, "must be of numbers, booleans or strings.*Received"
        ):
            Packing((tf.TensorSpec([2]), tf.TensorSpec([], tf.variant)))


class JoiningTest(tf.test.TestCase):
    def test_there_and_back(self):
        batches = [
            {
                "ragged": tf.ragged.constant([[1], [2, 3]][:rows]),
                "dense": tf.ones([rows, 2]) * rows,
                "strings": tf.constant(["a", "b"][:rows], tf.string),
            }
            for rows in (1, 2, 0)
        ]
        specs = {
            "ragged": tf.RaggedTensorSpec([None, None], tf.int32),
            "dense": tf.TensorSpec([None, 2]),
            "strings": tf.TensorSpec([None], tf.string),
        }
        batches[2]["ragged"] = tf.RaggedTensor.from_row_splits(
            tf.zeros([0], tf.int32), tf.zeros([1], tf.int64)
        )
        packing = Packing(specs)
        joining = Joining(packing)
        joined = joining.join([packing.pack(batch) for batch in batches])
        for tensor, spec in zip(joined, joining.signature, strict=True):
            self.assertTrue(spec.is_compatible_with(tensor))
        for index, batch in enumerate(batches):
            found = packing.unpack(
                joining.take(joined, tf.constant(index, tf.int64))
            )
            self.assertAllEqual(found["ragged"], batch["ragged"])
            self.assertAllEqual(found["dense"], batch["dense"])
            self.assertAllEqual(found["strings"], batch["strings"])


if __name__ == "__main__":
    tf.test.main()
