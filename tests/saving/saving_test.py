# SPDX-License-Identifier: Apache-2.0
"""Files that Keras and TensorFlow write hold the rows of tables."""

import gc
import pathlib
import zipfile
from unittest import mock

import h5py
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator, rows_of
from saving_util import FORMATS, TestCase, contents, trained

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.tables import rows

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "AsynchronousTest::*",
        "CallbackTest::test_checkpoint_manager_keeps_the_last",
        "OptimizerTest::test_class_settings_and_compile_state_are_restored",
        "OptimizerTest::test_equal_hyperparameters_log_nothing_checkpoint",
        "RoundTripTest::test_holds_every_sign_keras",
        "SavedModelTest::test_clocks_are_not_saved_in_a_graph*",
        "SavedModelTest::test_exported_model_serves_rows_*",
        "SavedModelTest::test_keras_model_goes_on_training",
        "SavedModelTest::test_keras_model_of_rows_with_clocks*",
        "SavedModelTest::test_two_loads_do_not_share_rows",
    ),
]

_RULES = tf_ext.optimizers


class RoundTripTest(TestCase):
    @parameterized.named_parameters(*FORMATS)
    @pytest.mark.both_kerases
    def test_replaces_what_is_there(self, name):
        write, read = self.format(name)
        model, _, _ = trained(self)
        write(model)
        other, _, _ = trained(self)
        other.tables[0].push([10**15], np.ones((1, 4)), learning_rate=0.1)
        read(other)
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))
        # Saving changed nothing, and the two tables are two.
        model.tables[0].clear()
        self.assertGreater(other.tables[0].size(), 0)

    @parameterized.named_parameters(*FORMATS)
    def test_of_an_empty_table_empties(self, name):
        write, read = self.format(name)
        empty, _, _ = trained(self)
        empty.tables[0].clear()
        write(empty)
        model, _, _ = trained(self)
        read(model)
        self.assertEqual(model.tables[0].size(), 0)

    @parameterized.named_parameters(*FORMATS)
    def test_holds_every_sign(self, name):
        write, read = self.format(name)
        model, _, _ = trained(self)
        int64 = np.iinfo(np.int64)
        signs = [0, -1, -2, int64.min, int64.max]
        model.tables[0].push(signs, np.ones((5, 4)), learning_rate=0.1)
        write(model)
        other = small.compiled(small.functional(small.table("adagrad")))
        self.assertEqual(other.tables[0].size(), 0)
        read(other)
        self.assertContainsSubset(signs, rows_of(other.tables[0]))
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))

    @parameterized.named_parameters(
        ("weights", "x.weights.h5"), ("keras", "x.keras")
    )
    def test_follows_a_link(self, name):
        model, _, _ = trained(self)
        path, link = (pathlib.Path(self.path(name)) for _ in range(2))
        link.symlink_to(path)
        save = model.save if path.suffix == ".keras" else model.save_weights
        for sign in (10**15, 10**16):  # The file is new, and then is replaced.
            model.tables[0].push([sign], np.ones((1, 4)), learning_rate=0.1)
            save(link)
            self.assertTrue(link.is_symlink())
            self.assertEqual([*link.parent.iterdir()], [link])
            self.assertEqual([*path.parent.iterdir()], [path])
            other = small.compiled(small.functional(small.table("adagrad")))
            other.load_weights(path)
            self.assertEqual(
                contents(other.tables[0]), contents(model.tables[0])
            )

    def test_many_chunks(self):
        model, _, _ = trained(self)
        path = self.path("x.keras")
        with mock.patch.object(rows, "_CHUNK_BYTES", 200):
            model.save(path)
        with h5py.File(_weights_file(self, path)) as file:
            chunks = [name for name in _names(file) if name.endswith("_signs")]
        self.assertGreater(len(chunks), 5)
        loaded = keras.models.load_model(path)
        self.assertEqual(contents(loaded.tables[0]), contents(model.tables[0]))

    def test_predictions_of_a_loaded_model(self):
        model, features, _ = trained(self)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertIsInstance(loaded, tf_ext.Model)
        self.assertAllEqual(
            model.predict(features, verbose=0),
            loaded.predict(features, verbose=0),
        )

    def test_layers_in_lists_and_dicts(self):
        features, labels = small.batch(generator(self))
        model = small.compiled(WithLists())
        model.train_on_batch(features, labels)
        path = self.path("checkpoint")
        tf.train.Checkpoint(model=model).write(path)
        other = small.compiled(WithLists())
        other(features)
        self.assertEqual([table.size() for table in other.tables], [0] * 3)
        tf.train.Checkpoint(model=other).read(path).expect_partial()
        self.assertEqual(
            [contents(table) for table in other.tables],
            [contents(table) for table in model.tables],
        )


class WithLists(tf_ext.Model):
    def __init__(self):
        super().__init__()
        first, second, third = (
            tf_ext.layers.EmbeddingFeatures(
                small.columns(), small.table(name=name)
            )
            for name in ("first", "second", "third")
        )
        self.embed = [first, second]
        self.more = {"third": third}
        self.top = small.head()

    def call(self, inputs, training=None):
        layers = [*self.embed, self.more["third"]]
        vectors = [layer(inputs, training=training) for layer in layers]
        return self.top(tf.concat(vectors, 1))


class CallbackTest(TestCase):
    def _fit(self, model, features, labels, *callbacks, epochs=3):
        return model.fit(
            features,
            labels,
            validation_data=(features, labels),
            epochs=epochs,
            verbose=0,
            shuffle=False,
            callbacks=list(callbacks),
        )

    def test_model_checkpoint_of_weights(self):
        model, features, labels = trained(self)
        path = self.path("{epoch}.weights.h5")
        states = []
        self._fit(
            model,
            features,
            labels,
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: states.append(contents(model.tables[0]))
            ),
        )
        self.assertNotEqual(states[0], states[1])
        for epoch, state in enumerate(states, 1):
            other = small.compiled(small.functional(small.table("adagrad")))
            self.assertEqual(other.tables[0].size(), 0)
            other.load_weights(path.format(epoch=epoch))
            self.assertEqual(contents(other.tables[0]), state)

    def test_model_checkpoint_of_the_best_whole_model(self):
        model, features, labels = trained(self)
        path = self.path("best.keras")
        states = []
        history = self._fit(
            model,
            features,
            labels,
            keras.callbacks.ModelCheckpoint(
                path, save_best_only=True, monitor="val_loss", mode="max"
            ),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: states.append(contents(model.tables[0]))
            ),
        )
        best = int(np.argmax(history.history["val_loss"]))
        self.assertLess(best, 2)
        loaded = keras.models.load_model(path)
        self.assertEqual(contents(loaded.tables[0]), states[best])

    def test_checkpoint_manager_keeps_the_last(self):
        model, features, labels = trained(self)
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model), self.path("all"), max_to_keep=2
        )
        states = []
        for _ in range(3):
            model.train_on_batch(features, labels)
            manager.save()
            states.append(contents(model.tables[0]))
        self.assertLen(manager.checkpoints, 2)
        for path, state in zip(manager.checkpoints, states[1:]):
            tf.train.Checkpoint(model=model).restore(path).expect_partial()
            self.assertEqual(contents(model.tables[0]), state)


class AsynchronousTest(TestCase):
    def test_is_refused(self):
        """Its rows would be those of later steps."""
        model, _, _ = trained(self)
        options = tf.train.CheckpointOptions(
            experimental_enable_async_checkpoint=True
        )
        path = self.path("checkpoint")
        for save in ("save", "write"):
            checkpoint = tf.train.Checkpoint(model=model)
            with self.assertRaisesRegex(ValueError, "asynchronous checkpoint"):
                getattr(checkpoint, save)(path, options)
        tf.train.Checkpoint(model=model).write(path)
        other, _, _ = trained(self)
        other.tables[0].clear()
        tf.train.Checkpoint(model=other).read(path).expect_partial()
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))


class SavedModelTest(TestCase):
    @parameterized.named_parameters(
        ("functional", small.functional), ("subclassed", small.Subclassed)
    )
    def test_exported_model_serves_rows(self, make):
        if IS_KERAS_3 and make is small.Subclassed:
            self.skipTest(
                "Keras 3 takes the inputs of such a model for floats."
            )
        features, labels = small.batch(generator(self))
        model = small.compiled(make(small.table("adagrad")))
        model.train_on_batch(features, labels)
        expected = model.predict(features, verbose=0)
        path = self.path("exported")
        model.export(path)
        served = tf.saved_model.load(path)
        model.tables[0].clear()
        batch = {k: tf.constant(v) for k, v in features.items()}
        self.assertAllClose(expected, served.serve(batch), rtol=1e-6)
        # Rows that the model never saw are served, not created.
        unseen = {k: v + 10**6 for k, v in batch.items()}
        self.assertAllEqual(served.serve(unseen), served.serve(unseen))

    @parameterized.named_parameters(
        ("model", None),
        ("own", 0.1),
        ("schedule", keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    )
    def test_saved_model_of_a_model_with_rate_of_(self, rate):
        model, features, _ = trained(self, _RULES.SparseAdagrad(rate))
        expected = model.predict(features, verbose=0)
        path = self.path("saved")
        tf.saved_model.save(model, path)
        served = tf.saved_model.load(path).signatures["serving_default"]
        model.tables[0].clear()
        batch = {k: tf.constant(v) for k, v in features.items()}
        if IS_KERAS_3:  # It has names of its own, in the keys' order.
            batch = {"inputs": batch["items"], "inputs_1": batch["user"]}
        [output] = served(**batch).values()
        self.assertAllClose(expected, output, rtol=1e-6)

    def test_two_loads_do_not_share_rows(self):
        module = tf.Module()
        module.table = small.table("sgd")
        module.table.push([7], np.ones((1, 4)), learning_rate=1.0)
        module.erase = tf.function(
            lambda: module.table.rows.erase([7]), input_signature=[]
        )
        module.pull = tf.function(
            lambda: module.table.pull([7, 8]), input_signature=[]
        )
        path = self.path("module")
        tf.saved_model.save(module, path)
        first, second = (tf.saved_model.load(path) for _ in range(2))
        saved = module.table.pull([7, 8]).numpy()
        self.assertAllEqual(first.pull(), saved)
        self.assertEqual(int(first.erase()), 1)
        self.assertAllClose(first.pull()[0], saved[0] + 1.0)
        self.assertAllEqual(second.pull(), saved)
        self.assertAllEqual(module.table.pull([7, 8]), saved)

    @parameterized.parameters("ab", "aa")
    def test_tables_of_one_kind_stay_apart(self, names):
        module = tf.Module()
        module.tables = [small.table("sgd", name=name) for name in names]
        for table, step in zip(module.tables, (1.0, -2.0)):
            table.push([7], np.full((1, 4), step), learning_rate=1.0)
        module.pull = tf.function(
            lambda: [table.pull([7]) for table in module.tables],
            input_signature=[],
        )
        expected = module.pull()
        path = self.path("module")
        tf.saved_model.save(module, path)
        self.assertAllEqual(tf.saved_model.load(path).pull(), expected)

    def test_loaded_rows_have_weights_alone_and_are_not_trained(self):
        module = tf.Module()
        module.table = small.table("adam")
        module.table.push([7], np.ones((1, 4)), learning_rate=0.1)
        module.push = tf.function(
            lambda: module.table.push([7], tf.ones([1, 4]), 1, 0.1),
            input_signature=[],
        )
        module.row_bytes = tf.function(
            lambda: module.table.rows.stats()[0][3], input_signature=[]
        )
        module.pull = tf.function(
            lambda: module.table.pull([7]), input_signature=[]
        )
        self.assertEqual(tf_ext.ops.TABLE_STATS[3], "row_bytes")
        self.assertEqual(int(module.row_bytes()), 8 + 4 * (4 + 4 + 4 + 1) + 4)
        path = self.path("module")
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        self.assertEqual(int(loaded.row_bytes()), 8 + 4 * 4)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "the table has optimizer=none, as in an exported model or inside "
            "of tf_ext.serving.weights_only: it holds weights to serve and "
            "cannot be trained. Train the model that was exported or saved",
        ):
            loaded.push()
        self.assertAllEqual(loaded.pull(), module.table.pull([7]))

    def test_functions_outlive_the_loaded_object(self):
        module = tf.Module()
        module.table = small.table("sgd")
        module.table.push([7], np.ones((1, 4)), learning_rate=1.0)
        module.pull = tf.function(
            lambda: module.table.pull([7]), input_signature=[]
        )
        path = self.path("module")
        tf.saved_model.save(module, path)
        pull = tf.saved_model.load(path).pull
        gc.collect()
        self.assertAllEqual(pull(), module.table.pull([7]))

    @pytest.mark.both_kerases
    @parameterized.parameters(
        ("has l2", 0.1), ('has absent="decay"', 0.0, "decay")
    )
    def test_keras_model_of_rows_with_clocks(self, what, l2, absent="keep"):
        if IS_KERAS_3:
            self.skipTest("Keras 3 saves no models as SavedModel.")
        rule = _RULES.SparseAdam(0.1, absent=absent)
        model, features, _ = trained(self, rule, l2=l2)
        with self.assertRaisesRegex(ValueError, f"{what}.*as a .keras file"):
            model.save(self.path("saved"))
        # Those that only serve have none.
        path = self.path("served")
        model.export(path)
        served = tf.saved_model.load(path)
        batch = {k: tf.constant(v) for k, v in features.items()}
        expected = model.predict(features, verbose=0)
        self.assertAllClose(served.serve(batch), expected, rtol=1e-6)

    @parameterized.parameters(
        ("has l2", 0.1), ('has absent="decay"', 0.0, "decay")
    )
    def test_clocks_are_not_saved_in_a_graph(self, what, l2, absent="keep"):
        rule = _RULES.SparseAdam(0.1, absent=absent)
        table = tf_ext.SparseTable("user", 2, rule, l2=l2)
        with tf.Graph().as_default():
            with self.assertRaisesRegex(ValueError, f"'user' {what}.*as a .ke"):
                table.rows.saved_state()

    @pytest.mark.both_kerases
    def test_keras_model_goes_on_training(self):
        model, features, labels = trained(self, _RULES.SparseAdam(0.1))
        # Keras 3 saves no models as SavedModel, but a folder.
        options = {"zipped": False} if IS_KERAS_3 else {}
        for save in (
            lambda p: model.save(p, **options),
            lambda p: keras.models.save_model(model, p, **options),
        ):
            path = self.path("saved")
            save(path)
            loaded = keras.models.load_model(path)
            self.assertEqual(
                contents(loaded.tables[0]), contents(model.tables[0])
            )
            losses = [
                m.train_on_batch(features, labels) for m in (model, loaded)
            ]
            self.assertEqual(*losses)
            self.assertEqual(
                contents(loaded.tables[0]), contents(model.tables[0])
            )
            if IS_KERAS_3:
                continue
            # The file serves as well.
            expected = model.predict(features, verbose=0)
            model.save(path)
            served = tf.saved_model.load(path).signatures["serving_default"]
            batch = {k: tf.constant(v) for k, v in features.items()}
            [output] = served(**batch).values()
            self.assertAllClose(expected, output, rtol=1e-6)


class OptimizerTest(TestCase):
    def test_class_settings_and_compile_state_are_restored(self):
        model = small.functional(small.table("adagrad"))
        optimizer = tf_ext.optimizers.Optimizer(
            keras.optimizers.Adam(0.25, beta_1=0.5, global_clipnorm=2.0),
            name="mine",
        )
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
        features, labels = small.batch(generator(self))
        model.train_on_batch(features, labels)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertIsInstance(loaded.optimizer, tf_ext.optimizers.Optimizer)
        self.assertIsInstance(
            loaded.optimizer.inner_optimizer, keras.optimizers.Adam
        )
        config, again = (m.optimizer.get_config() for m in (model, loaded))
        self.assertEqual(config, again)
        self.assertEqual(again["name"], "mine")
        self.assertEqual(again["dense"]["config"]["global_clipnorm"], 2.0)
        self.assertEqual(again["dense"]["config"]["beta_1"], 0.5)
        self.assertEqual(loaded.loss, "mse")
        self.assertTrue(loaded.run_eagerly)
        self.assertAllClose(
            model.evaluate(features, labels, verbose=0),
            loaded.evaluate(features, labels, verbose=0),
        )

    @parameterized.named_parameters(*FORMATS)
    def test_other_hyperparameters_win_and_are_logged(self, name):
        write, read = self.format(name)
        model, _, _ = trained(self, _RULES.SparseAdagrad(0.1, epsilon=1e-3))
        write(model)
        other, _, _ = trained(self, _RULES.SparseAdagrad(0.2, epsilon=1e-4))
        with self.assertLogs("tf_ext", "WARNING") as logs:
            read(other)
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                "Table 'deep' continues with epsilon=0.0001; the saved rows "
                "were trained with 0.001.",
                "Table 'deep' continues with learning_rate=0.2; the saved rows "
                "were trained with 0.1.",
            ],
        )
        self.assertEqual(other.tables[0].optimizer.learning_rate, 0.2)
        self.assertEqual(other.tables[0].optimizer.epsilon, 1e-4)

    @parameterized.named_parameters(*FORMATS)
    def test_equal_hyperparameters_log_nothing(self, name):
        write, read = self.format(name)
        model, _, _ = trained(self, _RULES.SparseAdagrad(0.1))
        write(model)
        with self.assertNoLogs("tf_ext", "WARNING"):
            read(model)


def _weights_file(test, path):
    """The HDF5 file inside a `.keras` file, unpacked."""
    with zipfile.ZipFile(path) as archive:
        return archive.extract("model.weights.h5", test.directory())


def _names(file):
    """The full names of the datasets of an HDF5 file."""
    names = []
    file.visititems(
        lambda name, item: (
            names.append(name) if isinstance(item, h5py.Dataset) else None
        )
    )
    return names


if __name__ == "__main__":
    tf.test.main()
