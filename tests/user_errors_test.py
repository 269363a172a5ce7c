# SPDX-License-Identifier: Apache-2.0
"""What a user is told who makes a common mistake."""

import tempfile
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import id_column
from processes import run_program

import tf_ext
from tf_ext._compat.op_errors import own_words
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import category_column

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "BatchSizesTest::test_in_a_model0",
        "GradientsTest::test_labels_that_are_no_numbers1",
    ),
]

_USER, _ITEM = category_column("user"), category_column("item")


def _inputs(dtype="int64"):
    return {
        key: keras.Input((), dtype=dtype, name=key) for key in ("user", "item")
    }


def _model(optimizer=None, **options):
    inputs = _inputs()
    table = tf_ext.SparseTable("deep", 2)
    embedded = tf_ext.layers.EmbeddingFeatures([_USER, _ITEM], table)(inputs)
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(embedded))
    optimizer = optimizer or tf_ext.optimizers.Optimizer("sgd")
    model.compile(optimizer, "mse", **options)
    return model


def _features(users=8, items=8):
    return {"user": np.arange(users), "item": np.arange(items)}


def _batches(*sizes):
    """A dataset of one batch, of unknown shape."""
    spec = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(
        lambda: iter([(_features(*sizes), np.ones([8, 1]))]),
        output_signature=(
            {"user": spec, "item": spec},
            tf.TensorSpec([None, 1], tf.float32),
        ),
    )


class EmbeddingFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_refused(self, message, *arguments):
        with self.assertRaises(ValueError) as raised:
            tf_ext.layers.EmbeddingFeatures(*arguments)
        self.assertStartsWith(str(raised.exception), message)

    def test_swapped_arguments(self):
        table = tf_ext.SparseTable("deep", 2)
        for arguments in ((table, [_USER]), (table,)):
            self._assert_refused(
                "Argument `columns` of EmbeddingFeatures must be a list of "
                "columns, and comes before `table`. Received: "
                "columns=<SparseTable 'deep'>, ",
                *arguments,
            )

    @parameterized.parameters([[_USER]], "deep", [{"deep": [_USER]}])
    def test_no_table(self, table):
        self._assert_refused(
            "Argument `table` of EmbeddingFeatures must be a "
            f"tf_ext.SparseTable. Received: table={table!r}",
            [_USER],
            table,
        )

    @parameterized.named_parameters(
        (
            "no_input",
            [_USER, category_column("tags")],
            "int64",
            "The feature 'tags' of column 'tags' is missing from the inputs.",
        ),
        (
            "floats",
            [_USER],
            "float32",
            "The feature 'user' has floats, which cannot be ids, and column "
            "'user' has no boundaries",
        ),
        (
            "complex",
            [_USER],
            "complex64",
            "The feature 'user' must be of strings, integers, booleans or",
        ),
        (
            "strings_with_boundaries",
            [category_column("user", boundaries=[1])],
            "string",
            "The feature 'user' is of strings, but column 'user' has bound",
        ),
        (
            "strings_as_signs",
            [id_column("user")],
            "string",
            "The feature 'user' is of strings, but column 'user' has hashing",
        ),
        (
            "part_of_a_cross",
            [tf_ext.feature_column.crossed_column(["user", "tags"])],
            "int64",
            "The feature 'tags' of column 'tags' is missing from the inputs.",
        ),
    )
    def test_inputs_that_do_not_fit(self, columns, dtype, message):
        layer = tf_ext.layers.EmbeddingFeatures(
            columns, tf_ext.SparseTable("deep", 2)
        )
        with self.assertRaisesRegex(ValueError, message):
            layer(_inputs(dtype))

    def test_weights_that_do_not_fit(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            [category_column("user", weights="w")], tf_ext.SparseTable("a", 2)
        )
        user = keras.Input((), dtype="int64", name="user")
        with self.assertRaisesRegex(
            ValueError, "The weights 'w' of column 'user' are missing from the "
        ):
            layer({"user": user})
        with self.assertRaisesRegex(
            ValueError, "The weights 'w' of column 'user' must be floats, but "
        ):
            layer({"user": user, "w": keras.Input((), dtype="int32")})

    def test_inputs_without_a_batch(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            [_USER], tf_ext.SparseTable("deep", 2)
        )
        user = tf.constant(1)  # tf_keras has no Input without a batch.
        if IS_KERAS_3:
            user = keras.Input(batch_shape=(), dtype="int64")
        with self.assertRaisesRegex(
            ValueError, "'user' must have a batch dimension, but is a scalar"
        ):
            layer({"user": user})

    def test_built_for_inputs_that_do_not_fit(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            [_USER, category_column("none", optional=True)],
            tf_ext.SparseTable("deep", 2),
        )
        layer.build({"user": (None,)})
        with self.assertRaisesRegex(
            ValueError,
            "'user' of column 'user' is missing from the inputs. "
            "Present are: 'item'",
        ):
            layer.build({"item": (None,)})
        with self.assertRaisesRegex(
            ValueError,
            "`input_shape` of EmbeddingFeatures.build must be a dict of shapes "
            "by key. Received: input_shape of type tuple",
        ):
            layer.build((None, 2))

    @parameterized.named_parameters(
        (
            "missing",
            _USER,
            {"item": np.arange(4)},
            "The feature 'user' of column 'user' is missing from the inputs.",
        ),
        (
            "floats",
            _USER,
            {"user": np.arange(4.0)},
            "The feature 'user' has floats, which cannot be ids",
        ),
        (
            "strings",
            id_column("user"),
            {"user": np.array(["a"] * 4)},
            "The feature 'user' is of strings, but column 'user' has hashing",
        ),
    )
    def test_no_step_is_made_of_inputs_that_do_not_fit(
        self, column, inputs, message
    ):
        table = tf_ext.SparseTable("deep", 2)

        class Own(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.features = tf_ext.layers.EmbeddingFeatures([column], table)

            def call(self, inputs):
                return self.features(inputs)

        model = Own()
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        with self.assertRaisesRegex(ValueError, message):
            model.fit(inputs, np.zeros([4, 2]), verbose=0)
        self.assertEqual(int(model.optimizer.iterations), 0)
        self.assertEqual(int(table.size()), 0)

    def test_inputs_that_fit(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            [
                _USER,
                category_column("age", boundaries=[1.0]),
                category_column("none", optional=True),
            ],
            tf_ext.SparseTable("deep", 2),
        )
        inputs = _inputs("string") | {"age": keras.Input((), name="age")}
        self.assertEqual(tuple(layer(inputs).shape), (None, 6))

    def test_inputs_that_are_no_dict(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            [_USER], tf_ext.SparseTable("deep", 2)
        )
        with self.assertRaisesRegex(ValueError, "`inputs` .* must be a dict"):
            layer(keras.Input((), dtype="int64"))


class CompileTest(tf.test.TestCase, parameterized.TestCase):
    def test_the_rule_of_a_table(self):
        message = (
            r"^Argument `optimizer` of compile must be the optimizer of the "
            r"variables outside of tables, such as tf_ext.optimizers.Optimizer"
            r'\("adam"\). Received: optimizer=.*SparseAdagrad.*, an optimizer '
            r"of tables. Pass it to the table: SparseTable\(..., optimizer="
            r"SparseAdagrad\(...\)\)"
        )
        with self.assertRaisesRegex(ValueError, message):
            _model(tf_ext.optimizers.SparseAdagrad(0.1))

    @parameterized.parameters(True, False)
    def test_an_optimizer_of_another_model(self, run_eagerly):
        optimizer = tf_ext.optimizers.Optimizer("adam", name="mine")
        first, second = (
            _model(optimizer, run_eagerly=run_eagerly) for _ in range(2)
        )
        data = _features(), np.ones([8, 1])
        first.fit(*data, verbose=0)
        with self.assertRaisesRegex(
            ValueError,
            r"The tf_ext.optimizers.Optimizer 'mine' was built for other "
            r"variables: it does not know '[^']*kernel[^']*' and 1 more. An "
            "optimizer belongs to one model: make one for each.",
        ):
            second.fit(*data, verbose=0)
        self.assertEqual(second.tables[0].size(), 0 if not run_eagerly else 16)
        first.fit(*data, verbose=0)

    def test_a_part_of_the_variables(self):
        model = _model()
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        optimizer.build(model.trainable_variables)
        kernel = model.layers[-1].trainable_variables[:1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(_features()))
        gradients = tape.gradient(loss, kernel)
        optimizer.apply_gradients(zip(gradients, kernel))


class SetWeightsTest(tf.test.TestCase, parameterized.TestCase):
    _SENTENCE = (
        "set_weights cannot be used here: the rows of table 'deep' are not in "
        "a variable, and get_weights returns none of them. Copy a model with "
    )

    def test_of_a_model(self):
        model = _model()
        before = model.get_weights()
        with self.assertRaisesRegex(RuntimeError, self._SENTENCE):
            model.set_weights([weight + 1.0 for weight in before])
        for old, new in zip(before, model.get_weights(), strict=True):
            self.assertAllEqual(old, new)

    @parameterized.parameters("table", "layer", "keras_model")
    def test_of_(self, kind):
        table = small.table()
        model = small.functional(table, keras.Model)
        owner = {
            "table": table,
            "layer": next(x for x in model.layers if hasattr(x, "columns")),
            "keras_model": model,
        }[kind]
        with self.assertRaisesRegex(RuntimeError, self._SENTENCE):
            owner.set_weights(owner.get_weights())

    @unittest.skipUnless(IS_KERAS_3, "tf_keras has no state trees.")
    def test_of_a_state_tree(self):
        plain = small.functional(small.table(), keras.Model)
        plain.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        for model in (_model(), plain):
            with self.assertRaisesRegex(
                RuntimeError, "set_state_tree cannot be .*, and get_state_tree"
            ):
                model.set_state_tree(model.get_state_tree("numpy_array"))

    def test_of_a_model_without_tables(self):
        inputs = keras.Input((2,))
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        weights = [weight + 1.0 for weight in model.get_weights()]
        model.set_weights(weights)
        self.assertAllEqual(model.get_weights()[0], weights[0])


class GradientsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        call=["fit", "train_on_batch"], run_eagerly=[True, False]
    )
    def test_labels_that_are_no_numbers(self, call, run_eagerly):
        model = _model(run_eagerly=run_eagerly)
        arguments = {"verbose": 0} if call == "fit" else {}
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            getattr(model, call)(
                _features(), np.full([8, 1], np.nan), **arguments
            )
        self.assertRegex(
            raised.exception.message,
            r"^Gradients of table 'deep' are not finite for \d+ signs, of "
            r"which the first is -?\d+\. Gradients of these variables are not "
            r"finite: .*(kernel|bias).*\. No variable and no table was "
            r"changed\. Look for NaN and infinity in labels, sample weights "
            "and features, "
            "lower the learning rate, clip gradients, or leave such steps out "
            r'with on_nonfinite="skip" of tf_ext.optimizers.Optimizer\. '
            r"Columns of table 'deep': 'item', 'user'\.$",
        )

    def test_skipped_as_the_message_says(self):
        model = _model(tf_ext.optimizers.Optimizer("sgd", on_nonfinite="skip"))
        model.fit(_features(), np.full([8, 1], np.nan), verbose=0)


class BatchSizesTest(tf.test.TestCase, parameterized.TestCase):
    _SENTENCE = (
        "All inputs must have the same batch size, but input 1 (of the column "
        'of namespace "item") has 7 and input 0 (of the column of namespace '
        '"user") has 8.'
    )

    @parameterized.parameters("fit", "evaluate")
    def test_in_a_model(self, method):
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            getattr(_model(), method)(_batches(8, 7), verbose=0)
        self.assertEqual(raised.exception.message, self._SENTENCE)

    def test_in_predict(self):
        # Keras 3 traces it with the sizes of the first batch.
        with self.assertRaisesRegex(
            (ValueError, tf.errors.InvalidArgumentError),
            "must have the same batch size, but ",
        ) as raised:
            _model().predict(_batches(8, 7), verbose=0)
        self.assertNotIn("{{", str(raised.exception))

    def test_eagerly(self):
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            tf_ext.feature_column.columns_to_bags(
                [_USER, _ITEM], _features(8, 7)
            )
        self.assertEqual(raised.exception.message, self._SENTENCE)

    def test_of_known_sizes_in_a_function(self):
        @tf.function(autograph=False)
        def call(features):
            return tf_ext.feature_column.columns_to_bags(
                [_USER, _ITEM], features
            )

        with self.assertRaises(ValueError) as raised:
            call({k: tf.constant(v) for k, v in _features(8, 7).items()})
        self.assertEqual(
            str(raised.exception),
            "All values must have the same batch size, but values[1] has 7 and "
            "those before it 8.",
        )

    def test_errors_of_other_ops_keep_their_nodes(self):
        inputs = keras.Input((2,))
        outputs = keras.layers.Lambda(
            lambda x: tf.debugging.check_numerics(x, "mine"),
            output_shape=(2,),
        )(inputs)
        model = tf_ext.Model(inputs, outputs)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, r"(?s)mine.*\{\{node .*CheckNum"
        ):
            model.predict(np.full([2, 2], np.nan, np.float32), verbose=0)

    @parameterized.parameters(
        "Graph execution error:\n\nA sentence. Two\nlines.\n\t [[{{node a/TfExt"
        ">B}}]] [Op:__inference_f_1]",
        "Graph execution error:\n\nDetected at node TfExt>B defined at (most "
        "recent call last):\n  File 'x', line 1\n\nA sentence. Two\nlines.\n\t "
        "[[{{node a/TfExt>B}}]]\n  (1) INVALID_ARGUMENT: more",
        "{{function_node __wrapped__TfExt>B_N_2}} A sentence. Two\nlines. "
        "[Op:TfExt>B] name: ",
        "A sentence. Two\nlines. for '{{node TfExt>B}} = TfExt>B[N=2](x)' with "
        "input shapes: [].",
        "{{function_node f}} assertion failed: [A sentence. Two\nlines.]\n\t "
        "[[{{node columns_to_bags/Assert}}]] [Op:f]",
        "A sentence. Two\nlines.",
    )
    def test_own_words(self, message):
        self.assertEqual(own_words(message), "A sentence. Two\nlines.")


# In a process of its own: AutoGraph warns of a function once in a process.
_TRAIN_IN_TF_KERAS = """
import os, unittest
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
from models import small_models as small
import tf_ext

class Losses(tf_ext.Model):
    def __init__(self):
        super().__init__()
        self.towers = tf.keras.layers.Dense(4)
        self.frequency = tf_ext.layers.ItemFrequency(100)
        self.softmax = tf_ext.layers.InBatchSoftmax()

    def call(self, ids, training=None):
        vectors = self.towers(tf.one_hot(ids, 8))
        frequency = self.frequency(ids, training=training)
        return self.softmax(vectors, vectors, ids, frequency)

class Test(unittest.TestCase):
    def test(self):
        with self.assertNoLogs("tensorflow", level="WARNING"):
            model = small.compiled(small.functional(small.table()))
            model.fit(*small.batch(np.random.default_rng(1)), verbose=0)
            losses = small.compiled(Losses())
            losses.fit(tf.range(8), tf.zeros(8), verbose=0)

unittest.main()
"""


class WarningsTest(tf.test.TestCase):
    @unittest.skipIf(not IS_KERAS_3, "once is enough")
    @pytest.mark.slow
    def test_none_of_code_that_autograph_cannot_convert(self):
        with tempfile.TemporaryDirectory() as folder:
            run_program(_TRAIN_IN_TF_KERAS, folder)


if __name__ == "__main__":
    tf.test.main()
