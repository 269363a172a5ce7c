# SPDX-License-Identifier: Apache-2.0
"""What Keras's models keep to themselves is still there."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import models
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases


def _dense(inputs=None):
    inputs = keras.Input([1]) if inputs is None else inputs
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def _mirrored():
    # Collectives of one process keep the shapes of their first strategy.
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], tf.distribute.HierarchicalCopyAllReduce()
    )


class _First(keras.layers.Layer):
    def call(self, inputs):
        return inputs["x"] if isinstance(inputs, dict) else inputs


class ModelsTest(absltest.TestCase):
    def test_layers_inside_of_others_are_found(self):
        inner = _dense()
        inputs = keras.Input([1])
        outer = keras.Model(inputs, inner(inputs))
        self.assertIn(inner.layers[-1], models.layers_of(outer))
        self.assertNotIn(inner.layers[-1], outer.layers)
        self.assertIn(inner, models.sublayers(outer))
        self.assertNotIn(inner.layers[-1], models.sublayers(outer))

    def test_calls_that_make_functional_models(self):
        for count, names, expected in (
            (2, [], True),
            (1, ["outputs"], True),
            (0, ["inputs", "outputs"], True),
            (1, ["name"], False),
            (0, ["outputs"], False),
            (0, ["inputs"], False),
            (0, [], False),
        ):
            found = models.is_functional_call([0] * count, dict.fromkeys(names))
            self.assertEqual(found, expected, (count, names))

    def test_what_a_summary_counts(self):
        model = _dense()
        lines = []
        for _ in range(2):
            with models.counting_weights(model, model.weights[:1]):
                model.summary(print_fn=lambda line, **_: lines.append(line))
        text = "\n".join(lines)
        self.assertEqual(text.count("Trainable params: 1 "), 2)
        self.assertLen(model.trainable_weights, 2)

    def test_inputs_without_casts(self):
        class Model(keras.Model):
            def __init__(self, init=None):
                if init is None:
                    super().__init__(dtype="mixed_bfloat16")
                else:
                    init(
                        self, super().__init__, (), {"dtype": "mixed_bfloat16"}
                    )
                self.own = self.add_weight(shape=(), name="own")

            def call(self, inputs):
                self.seen = inputs.dtype
                # Variables are cast all the same.
                self.variable = tf.convert_to_tensor(self.own).dtype
                return inputs

        inputs = tf.ones([2, 1])
        for init, seen in (
            (None, tf.bfloat16),
            (models.without_input_casts, tf.float32),
        ):
            model = Model(init)
            model(inputs)
            self.assertEqual(model.seen, seen)
            self.assertEqual(model.variable, tf.bfloat16)

    def test_inputs_of_saved_models(self):
        class Model(models.SavedAsCalled, keras.Model):
            def call(self, inputs):
                return tf.strings.length(inputs)

            def _saved_inputs(self):
                return tf.TensorSpec([None], tf.string)

        if not IS_KERAS_3:
            self.skipTest("tf_keras records the inputs of the first call")
        model = Model()
        model(tf.constant(["a"]))
        with tempfile.TemporaryDirectory() as path:
            tf.saved_model.save(model, path)

    def test_losses_of_several_replicas(self):
        strategy = _mirrored()
        shared, found = [], []

        def step():
            context = tf.distribute.get_replica_context()
            own = tf.constant(1.0) + 1.0
            shared.append(own)
            # The other replica has its turn.
            context.all_reduce(tf.distribute.ReduceOp.SUM, own)
            both = models.losses_are_mixed(shared)
            found.append((both, models.losses_are_mixed([own])))

        tf.function(lambda: strategy.run(step))()
        self.assertEqual(found, [(IS_KERAS_3, False)] * 2)
        self.assertFalse(models.losses_are_mixed([tf.constant(1.0)]))

    def test_metrics_of_the_losses_of_outputs(self):
        inputs = keras.Input([1])
        outputs = [
            keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")
        ]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        self.assertEmpty(models.loss_metrics_of_outputs(model))
        ones = np.ones([4, 1])
        model.fit(ones, [ones, ones], verbose=0)
        found = models.loss_metrics_of_outputs(model)
        names = [metric.name for metric in found]
        self.assertEqual(names, ["a_loss", "b_loss"] if IS_KERAS_3 else [])

    def test_readers_of_an_input(self):
        inputs = {key: keras.Input([1], name=key) for key in "ab"}
        layers = [keras.layers.Dense(1, name=name) for name in ("one", "both")]
        both = layers[1](keras.layers.Add(name="sum")([*inputs.values()]))
        model = keras.Model(inputs, [layers[0](inputs["a"]), both])
        for key, names in (("a", {"one", "sum"}), ("b", {"sum"})):
            found = {r.name for r in models.readers_of(model, model.input[key])}
            self.assertEqual(found - {"a", "b"}, names)

    def test_keys_of_an_input(self):
        inputs = {key: keras.Input([1], name=key) for key in "ab"}
        given = {
            "one": ({"x": inputs["a"], "y": inputs["b"]},),
            "twice": ({"x": inputs["a"], "y": inputs["a"]},),
            "no_dict": (inputs["a"],),
            "list": ({"x": inputs["a"], "y": [inputs["a"]]},),
        }
        layers = {key: _First(name=key) for key in given}
        layers["calls"] = _First(name="calls")
        outputs = [layers[key](*args) for key, args in given.items()]
        for key in "xy":
            outputs.append(
                layers["calls"]({"x": inputs["b"], key: inputs["a"]})
            )
        keras.Model(inputs, outputs)
        for name, keys in (
            ("one", "x"),
            ("twice", "xy"),
            ("no_dict", ""),
            ("list", ""),
            ("calls", "xy"),
        ):
            found = models.keys_given(layers[name], inputs["a"])
            self.assertEqual(found, set(keys), name)

    def test_inputs_of_an_only_call(self):
        if not IS_KERAS_3:
            self.skipTest("Keras 3 only.")
        inputs = {key: keras.Input([1], name=key) for key in "ab"}
        both = {"x": inputs["a"], "y": inputs["b"]}

        def outputs_of(layer):
            return {
                "inputs": [layer(both)],
                "keyword": [layer(inputs=both)],
                "no_dict": [layer(inputs["a"])],
                "computed": [layer({"x": inputs["a"] + 1.0})],
                "two_calls": [layer(both), layer(both)],
            }

        def find(name):
            layer = _First(name=name)
            layer(both)  # Not in the model.
            model = keras.Model(inputs, outputs_of(layer)[name])
            return models.inputs_of_only_call(model, layer)

        for name in ("inputs", "keyword"):
            found = find(name)
            self.assertEqual(found.keys(), {"x", "y"})
            self.assertIs(found["x"], inputs["a"])
        for name in ("no_dict", "computed", "two_calls"):
            self.assertIsNone(find(name), name)

    def test_says_whether_it_is_compiled(self):
        model = _dense()
        self.assertFalse(models.is_compiled(model))
        model.compile("sgd", "mse")
        self.assertTrue(models.is_compiled(model))

    def test_steps_per_execution(self):
        model = _dense()
        for given, expected in [(1, 1), (7, 7)]:
            model.compile("sgd", "mse", steps_per_execution=given)
            steps = models.steps_per_execution(model)
            self.assertIsInstance(steps, int)
            self.assertEqual(steps, expected)

    def test_what_makes_a_model_functional(self):
        inputs = keras.Input([1])
        outputs = keras.layers.Dense(1)(inputs)
        for args, kwargs in (
            ([inputs, outputs], {}),
            ([inputs], {"outputs": outputs}),
            ([], {"inputs": inputs, "outputs": outputs}),
            ([], {}),
            ([], {"name": "model"}),
        ):
            functional = isinstance(
                keras.Model(*args, **kwargs), models.Functional
            )
            found = models.is_functional_call(args, kwargs)
            self.assertEqual(found, functional)

    def test_a_base_is_replaced(self):
        class Base(keras.Model):
            pass

        class Other(models.Functional):
            pass

        class Between(Base):
            pass

        class Last(Between):
            pass

        self.assertIs(models.replace_base(Last, Base, Other), Last)
        self.assertEqual(Last.__bases__, (Between,))
        self.assertEqual(Between.__bases__, (Other,))
        self.assertEqual(Base.__bases__, (keras.Model,))
        inputs = keras.Input([1])
        model = Last(inputs, keras.layers.Dense(1)(inputs))
        self.assertEqual(model(np.ones([2, 1])).shape, (2, 1))

    def test_functional_models_have_a_class(self):
        self.assertIsInstance(_dense(), models.Functional)
        self.assertTrue(issubclass(models.Functional, keras.Model))
        self.assertNotIsInstance(keras.Model(), models.Functional)

    def test_backup_says_where_training_goes_on(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2:
                    raise InterruptedError

        data = tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.ones([4, 1])))
        model = _dense()
        model.compile("sgd", "mse")
        backup = keras.callbacks.BackupAndRestore
        with self.assertRaises(InterruptedError):
            model.fit(
                data, epochs=4, verbose=0, callbacks=[backup(folder), Stop()]
            )
        again = _dense()
        again.compile("sgd", "mse")
        again.optimizer.build(again.trainable_variables)
        self.assertEqual(models.start_of_training(again, 0, 1), (0, 0))
        callbacks = keras.callbacks.CallbackList([backup(folder)], model=again)
        callbacks.on_train_begin()
        self.assertEqual(models.start_of_training(again, 0, 1), (2, 0))
        self.assertEqual(models.start_of_training(_dense(), 3, 1), (3, 0))


@absltest.skipUnless(IS_KERAS_3, "tf_keras builds in the first step")
class BuildTest(absltest.TestCase):
    def _compiled(self):
        with _mirrored().scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        return model

    def test_metrics_are_built_too(self):
        model = self._compiled()
        models.build_for(model, (tf.ones([2, 1]), tf.ones([2, 1])))
        self.assertTrue(model.built)
        self.assertIn("mae", [m.name for m in model.metrics[1].metrics])

    def test_calling_it_builds_layers_alone(self):
        model = self._compiled()
        model(tf.ones([2, 1]))
        self.assertTrue(model.built)
        self.assertFalse(model.metrics[1].built)

    def _fit(self, *mixins):
        class Model(*mixins, keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)

            def _strategy_of_replicas(self):
                return self.distribute_strategy

            def call(self, texts):
                return self.dense(
                    tf.cast(tf.strings.length(texts), tf.float32)[:, None]
                )

        with _mirrored().scope():
            model = Model()
            model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensors((["a", "bc"], np.ones([2, 1])))
        model.fit(data, verbose=0)
        return model

    def test_builds_for_one_replicas_strings(self):
        self.assertTrue(self._fit(models.BuiltForOneReplica).built)

    def test_keras_builds_for_a_mean_that_strings_do_not_have(self):
        with self.assertRaises((TypeError, ValueError, tf.errors.OpError)):
            self._fit()


if __name__ == "__main__":
    absltest.main()
