# SPDX-License-Identifier: Apache-2.0
import gc
import importlib.util
import inspect
import os
import weakref

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models
from models.model_building import generator, rows_of
from models.small_models import Subclassed, batch, compiled, functional, table

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import Optimizer

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "FunctionalSubclassTest::test_leaves_other_classes_as_they_are0",
        "KindsTest::test_all_are_models",
        "KindsTest::test_tables_are_listed_once",
        "MethodsTest::test_frozen_tables_functional",
        "MethodsTest::test_however_it_is_compiled_any_steps_an_execution",
        "MethodsTest::test_only_training_makes_rows",
        "MethodsTest::test_weights_of_samples_and_classes",
        "MethodsTest::test_without_an_optimizer",
        "MixedPrecisionTest::test_a_step_that_is_not_finite_is_skipped_whole",
        "RefusedTest::test_*",
    ),
]

_KINDS = (("functional", functional), ("subclassed", Subclassed))


class ModelTestCase(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.features, self.labels = batch(generator(self))

    def fit(self, model, **kwargs):
        kwargs = {"batch_size": 16, "shuffle": False, "verbose": 0} | kwargs
        return model.fit(self.features, self.labels, **kwargs)

    def assert_same(self, first, second, rtol=1e-5, atol=1e-6):
        """Asserts that rows and variables are as good as equal."""
        for one, two in zip(first.tables, second.tables, strict=True):
            rows, others = rows_of(one), rows_of(two)
            self.assertCountEqual(rows, others)
            self.assertNotEmpty(rows)
            for sign, row in rows.items():
                self.assertAllClose(row, others[sign], rtol=rtol, atol=atol)
        for one, two in zip(first.weights, second.weights, strict=True):
            self.assertAllClose(one.numpy(), two.numpy(), rtol=rtol, atol=atol)


class MethodsTest(ModelTestCase):
    @parameterized.named_parameters(*_KINDS)
    @pytest.mark.both_kerases
    def test_fit_evaluate_predict(self, make):
        model = compiled(make(table("adagrad")), metrics=["AUC"])
        before = self.fit(model, epochs=1).history["loss"][0]
        history = self.fit(model, epochs=15, validation_split=0.25).history
        self.assertLess(history["loss"][-1], before / 2)
        results = model.evaluate(
            self.features, self.labels, verbose=0, return_dict=True
        )
        predicted = model.predict(self.features, verbose=0)
        self.assertEqual(predicted.shape, (64, 1))
        loss = keras.losses.binary_crossentropy(self.labels, predicted)
        self.assertAllClose(results["loss"], np.mean(loss), rtol=1e-5)
        self.assertGreater(max(results.values()), 0.95)  # the AUC

    @parameterized.named_parameters(*_KINDS)
    def test_on_batches(self, make):
        fitted, stepped = (compiled(make(table())) for _ in range(2))
        history = self.fit(fitted, batch_size=64, epochs=3).history["loss"]
        losses = [
            stepped.train_on_batch(self.features, self.labels, return_dict=True)
            for _ in range(3)
        ]
        if not IS_KERAS_3:  # Its losses are running means over the calls.
            self.assertAllClose(
                [logs["loss"] for logs in losses], history, rtol=1e-5
            )
        self.assert_same(fitted, stepped)
        self.assertAllClose(
            stepped.test_on_batch(self.features, self.labels),
            fitted.evaluate(
                self.features, self.labels, verbose=0, batch_size=64
            ),
            rtol=1e-5,
        )
        self.assertAllClose(
            stepped.predict_on_batch(self.features),
            fitted.predict(self.features, verbose=0),
            rtol=1e-5,
        )

    @parameterized.named_parameters(
        ("eagerly", {"run_eagerly": True}),
        ("four_steps_an_execution", {"steps_per_execution": 4}),
        ("three_steps_an_execution", {"steps_per_execution": 3}),
        ("any_steps_an_execution", {"steps_per_execution": "auto"}),
        ("jit_auto", {"jit_compile": "auto"}),
        ("jit_off", {"jit_compile": False}),
    )
    def test_however_it_is_compiled(self, options):
        if not IS_KERAS_3 and options.get("jit_compile") == "auto":
            with self.assertRaisesRegex(
                ValueError, "must be False, as XLA .*: jit_compile='auto'"
            ):
                compiled(functional(table()), **options)
            return
        if IS_KERAS_3 and options.get("steps_per_execution") == "auto":
            with self.assertRaisesRegex(
                ValueError,
                "`steps_per_execution` of compile must be an integer of at "
                "least 1. Received: steps_per_execution='auto'",
            ):
                compiled(functional(table()), **options)
            return
        plain, other = (functional(table("adagrad")) for _ in range(2))
        self.fit(compiled(plain), epochs=2)
        self.fit(compiled(other, **options), epochs=2)
        self.assert_same(plain, other)
        self.assertEqual(int(other.optimizer.iterations), 8)

    @parameterized.named_parameters(
        ("functional_eagerly", functional, lambda f: f),
        ("functional_in_a_function", functional, tf.function),
        ("subclassed_eagerly", Subclassed, lambda f: f),
        ("subclassed_in_a_function", Subclassed, tf.function),
    )
    def test_a_loop_of_ones_own(self, make, mode):
        fitted, looped = (make(table("adagrad")) for _ in range(2))
        self.fit(compiled(fitted), batch_size=64, epochs=3)
        optimizer = Optimizer(keras.optimizers.SGD(0.5))

        @mode
        def step(features, labels):
            with tf.GradientTape() as tape:
                predicted = looped(features, training=True)
                losses = keras.losses.binary_crossentropy(labels, predicted)
                loss = tf.reduce_mean(losses)
            variables = looped.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        features = {k: tf.constant(v) for k, v in self.features.items()}
        for _ in range(3):
            step(features, tf.constant(self.labels))
        self.assert_same(fitted, looped)

    @pytest.mark.both_kerases
    def test_weights_of_samples_and_classes(self):
        positive = self.labels[:, 0] == 1
        by_class = compiled(functional(table()))
        self.fit(by_class, class_weight={0: 0.0, 1: 2.0})
        by_sample = compiled(functional(table()))
        self.fit(by_sample, sample_weight=2.0 * positive)
        self.assert_same(by_class, by_sample)
        # Rows that only samples without weight have stay as they were.
        users = np.unique(self.features["user"])
        rows, start = by_class.tables[0].pull(users), table().pull(users)
        self.assertAllEqual(np.all(rows == start, axis=1), users % 2 == 0)

    def test_without_an_optimizer(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has to be given one")
        model = functional(table())
        model.compile(None, "mse")
        self.assertIsNone(model.optimizer)
        loss = model.evaluate(self.features, self.labels, verbose=0)
        predicted = model.predict(self.features, verbose=0)
        wanted = np.mean((predicted - self.labels) ** 2)
        self.assertAllClose(loss, wanted, 1e-5)

    def test_only_training_makes_rows(self):
        model = compiled(functional(table()))
        unseen = {key: value + 1000 for key, value in self.features.items()}
        self.fit(model, validation_data=(unseen, self.labels))
        seen = {*np.unique(self.features["user"])}
        seen |= {*np.unique(self.features["items"])}
        self.assertEqual(model.tables[0].size(), len(seen))
        model.evaluate(unseen, self.labels, verbose=0)
        predicted = model.predict(unseen, verbose=0)
        model.test_on_batch(unseen, self.labels)
        model(unseen)
        self.assertEqual(model.tables[0].size(), len(seen))
        # They read the weights that they would start with.
        model.tables[0].pull(unseen["user"], training=True)
        self.assertAllEqual(model.predict(unseen, verbose=0), predicted)

    @parameterized.named_parameters(*_KINDS)
    def test_frozen_tables(self, make):
        deep = table()
        deep.pull([1], training=True)
        deep.trainable = False
        model = make(deep)
        rows = rows_of(deep)[1]
        self.fit(compiled(model))
        self.assertEqual(model.tables, [deep])
        self.assertEqual(deep.size(), 1)
        self.assertAllEqual(rows_of(deep)[1], rows)

    def test_a_dataset_of_ragged_features(self):
        dense, ragged = (compiled(functional(table())) for _ in range(2))
        self.fit(dense)
        items = tf.RaggedTensor.from_tensor(self.features["items"])
        dataset = tf.data.Dataset.from_tensor_slices(
            (self.features | {"items": items}, self.labels)
        ).batch(16)
        ragged.fit(dataset, verbose=0)
        self.assert_same(dense, ragged)
        self.assertAllClose(
            ragged.predict(dataset, verbose=0),
            dense.predict(self.features, verbose=0),
            rtol=1e-5,
        )

    def test_logs_for_tensorboard(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("Keras's callback needs the package tensorboard")
        path = self.get_temp_dir()
        model = compiled(functional(table()))
        board = keras.callbacks.TensorBoard(path, histogram_freq=1)
        self.fit(
            model,
            callbacks=[board],
            validation_data=(self.features, self.labels),
        )
        files = tf.io.gfile.glob(os.path.join(path, "*", "*tfevents*"))
        self.assertLen(files, 2)
        self.assertGreater(min(map(os.path.getsize, files)), 100)


class KindsTest(ModelTestCase):
    def test_all_are_models(self):
        models = [functional(table()), Subclassed(table())]
        for model in models + [functional(table())]:
            self.assertIsInstance(model, tf_ext.Model)
            self.assertIsInstance(model, keras.Model)
        self.assertNotIsInstance(models[0], Subclassed)
        plain = functional(table(), keras.Model)
        self.assertNotIsInstance(plain, tf_ext.Model)

    def test_classes_made_after_models_of_the_other_kind(self):
        functional(table())

        class Later(Subclassed):
            pass

        model = compiled(Later(table()))
        self.fit(model)
        self.assertIs(type(model), Later)
        again = compiled(functional(table()))
        self.fit(again)
        self.assert_same(again, model)
        self.assertNotIsInstance(again, Later)

    def test_a_plain_keras_model_trains_alike(self):
        ours, plain = functional(table()), functional(table(), keras.Model)
        embeddings = plain.layers[-2].tables
        for model in (ours, plain):
            self.fit(compiled(model))
        trained = ours.tables[0].export_rows()[0]
        self.assertLen(trained, embeddings[0].size())
        self.assertAllClose(
            ours.tables[0].pull(trained), embeddings[0].pull(trained)
        )

    def test_tables_are_listed_once(self):
        first, second = table(), table(name="second")
        ids = small_models.inputs()
        columns = small_models.columns()
        layers = [
            tf_ext.layers.EmbeddingFeatures(columns, first),
            tf_ext.layers.EmbeddingFeatures({second: columns, first: columns}),
        ]
        model = tf_ext.Model(ids, [layer(ids) for layer in layers])
        self.assertEqual([t.name for t in model.tables], ["deep", "second"])
        self.assertIs(model.tables[0], first)

    def test_a_table_lives_as_long_as_its_model(self):
        def train():
            model = compiled(functional(table()))
            self.fit(model)
            model.predict(self.features, verbose=0)
            return model

        model = train()
        alive = weakref.ref(model.tables[0])
        gc.collect()
        self.assertIsNotNone(alive())
        del model
        gc.collect()
        self.assertIsNone(alive())


class Doubled(tf_ext.Model):
    def train_step(self, data):
        return {**super().train_step(data), "own": 2.0}


class DoubledMore(Doubled):
    pass


class OwnCall(tf_ext.Model):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, inputs):
        return self.dense(inputs["x"])


class FunctionalSubclassTest(ModelTestCase):
    @parameterized.parameters(Doubled, DoubledMore)
    def test_leaves_other_classes_as_they_are(self, cls):
        bases = tf_ext.Model.__bases__
        for _ in range(2):
            inputs = {"x": keras.Input([1], name="x")}
            outputs = keras.layers.Dense(1)(inputs["x"])
            model = cls(inputs=inputs, outputs=outputs)
            self.assertIsInstance(model, tf_ext.Model)
            self.assertIsInstance(model, cls)
            model.compile(Optimizer("sgd"), "mse")
            x = {"x": np.ones([4, 1], np.float32)}
            history = model.fit(x, np.ones([4, 1]), verbose=0).history
            self.assertEqual(history["own"], [2.0])
            self.assertEqual(tf_ext.Model.__bases__, bases)
            self.assertEqual(OwnCall(3)(x).shape, (4, 3))


class RefusedTest(ModelTestCase):
    def test_a_model_of_frozen_layers(self):
        model = compiled(functional(table()))
        for layer in model.layers:
            layer.trainable = False
        model = compiled(model)
        if not IS_KERAS_3:
            self.skipTest("tf_keras trains what it can")
        with self.assertRaisesRegex(
            ValueError, "depends on none of table 'deep'.*freeze the tables"
        ):
            self.fit(model)
        model.tables[0].trainable = False
        self.fit(compiled(model))

    def test_compiling_with_xla(self):
        with self.assertRaisesRegex(
            ValueError, "XLA cannot compile the ops .*: jit_compile=True"
        ):
            compiled(functional(table()), jit_compile=True)

    def test_compiling_with_xla_by_position(self):
        model = functional(table())
        names = list(inspect.signature(keras.Model.compile).parameters)[1:]
        before = names[1 : names.index("jit_compile")]
        with self.assertRaisesRegex(ValueError, "XLA cannot compile the ops"):
            model.compile(
                tf_ext.optimizers.Optimizer("sgd"),
                *["mse" if name == "loss" else None for name in before],
                True,
            )

    def test_files_without_rows(self):
        model = compiled(functional(table()))
        for save, path, instead in (
            (model.save, "model.h5", ".keras"),
            (model.save, "model.hdf5", ".keras"),
            (model.save_weights, "weights.h5", ".weights.h5"),
        ):
            path = os.path.join(self.get_temp_dir(), path)
            with self.assertRaisesRegex(
                ValueError, f"must end in '{instead}': .* but no rows.*{path}"
            ):
                save(path)
            self.assertFalse(os.path.exists(path))

    @parameterized.named_parameters(("by_name", True), ("by_position", False))
    def test_callbacks_without_rows(self, by_name):
        model = compiled(functional(table()))
        stop = keras.callbacks.EarlyStopping(restore_best_weights=True)
        cases = [([stop], "restores variables but not rows")]
        if IS_KERAS_3:
            swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
            cases.append(([swap], "without SwapEMAWeights, .* not swap rows"))
            # Its constructor needs another package.
            kind = keras.callbacks.OrbaxCheckpoint
            cases.append(([kind.__new__(kind)], "not save rows: use .*Table"))
        for callbacks, text in cases:
            for given in (
                callbacks,
                callbacks[0],
                keras.callbacks.CallbackList(callbacks),
            ):
                with self.assertRaisesRegex(ValueError, text):
                    if by_name:
                        self.fit(model, callbacks=given)
                    else:
                        data = [self.features, self.labels]
                        model.fit(*data, 16, 1, 0, given)
        self.assertEqual(model.tables[0].size(), 0)
        self.fit(model, callbacks=[keras.callbacks.EarlyStopping("loss")])

    def test_classes_of_callbacks(self):
        model = compiled(functional(table()))
        made = tf_ext.callbacks.TableStats
        for given in (made, [made]):
            with self.assertRaisesRegex(
                ValueError, r"`callbacks` of fit .* TableStats\(\.\.\.\), not"
            ):
                self.fit(model, callbacks=given)


class MixedPrecisionTest(ModelTestCase):
    def setUp(self):
        super().setUp()
        keras.mixed_precision.set_global_policy("mixed_float16")
        self.addCleanup(keras.mixed_precision.set_global_policy, "float32")

    def test_trains_like_full_precision(self):
        mixed = compiled(functional(table()))
        self.assertEqual(mixed.layers[-2].compute_dtype, "float16")
        self.fit(mixed, epochs=2)
        keras.mixed_precision.set_global_policy("float32")
        full = compiled(functional(table()))
        self.fit(full, epochs=2)
        self.assert_same(mixed, full, rtol=0, atol=2e-3)
        signs, fields = mixed.tables[0].export_rows()
        start = table().pull(signs)
        self.assertEqual(fields["weights"].dtype, np.float32)
        self.assertGreater(np.abs(fields["weights"] - start).max(), 1e-2)

    def test_a_step_that_is_not_finite_is_skipped_whole(self):
        model = compiled(functional(table()))
        self.fit(model)
        users = self.features["user"]
        rows, weights = model.tables[0].pull(users), model.get_weights()
        self.labels[0] = np.nan
        self.fit(model, batch_size=64)
        self.assertAllEqual(model.tables[0].pull(users), rows)
        for old, new in zip(weights, model.get_weights(), strict=True):
            self.assertAllEqual(old, new)


if __name__ == "__main__":
    tf.test.main()
