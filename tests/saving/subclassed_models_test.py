# SPDX-License-Identifier: Apache-2.0
"""Subclassed models are loaded in a new process as they were saved."""

import json
from unittest import mock

import numpy as np
import processes
import pytest
import tensorflow as tf
from models import subclassed_models as models
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "RefusalTest::test_copies_of_a_configuration",
        "NewProcessTest::test_predictions_and_training_go_on",
    ),
]

_PROGRAM = "subclassed_saving_program.py"
_USERS = {"user": tf.constant(["a", "b", "ccc"])}


class NewProcessTest(TestCase):
    def _check(self, names):
        directory = self.directory()
        processes.run(_PROGRAM, "save", directory, *names)
        printed = processes.run(_PROGRAM, "load", directory, *names)
        results = json.loads(printed.splitlines()[-1])
        self.assertSameElements(results, names)
        # tf_keras and TensorFlow restore variables that are made later.
        refused = {"load_weights_unbuilt"}
        if IS_KERAS_3:
            refused.add("restore_checkpoint_unbuilt")
        for name, found in results.items():
            for loader, result in found.items():
                with self.subTest(f"{name}: {loader}"):
                    if loader in refused:
                        self.assertRegex(
                            str(result), "[Nn]ot built(.|\n)*on a batch"
                        )
                    else:
                        self.assertIsInstance(result, float, result)
                        self.assertLess(result, 1e-6)

    def test_predictions_and_training_go_on(self):
        self._check(list(models.CASES))

    @pytest.mark.slow
    def test_of_more_models(self):
        self._check(list(models.SLOW_CASES))


class Compared(tf_ext.Model):
    """A model whose call fails for inputs of other types than strings."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = models.embed(models.column("user"))
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        lengths = tf.cast(tf.strings.length(inputs["user"]), tf.float32)
        embedded = self.embed(inputs, training=training)
        return self.top(embedded) + lengths[:, tf.newaxis]


class PlainCompared(keras.Model):
    """The same of Keras alone, which does not know the types."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.compared = Compared()
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.top(self.compared(inputs, training=training))


class PlainWithPart(keras.Model):
    """A model of Keras alone, which takes ids for tables alone."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.part = models.Part()
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.top(self.part(inputs, training=training))


class PlainWithIntegers(keras.Model):
    """A model of Keras alone, which builds it on floats."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        column = tf_ext.feature_column
        self.embed = models.embed(
            column.category_column("user"),
            column.category_column("item", hashing="identity"),
            column.time_column("time", "hour"),
        )
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


class WithFunction(tf_ext.Model):
    """An argument is a function, which no file holds."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = models.embed(models.column("user"))
        self.top = keras.layers.Dense(1)

    def call(self, inputs, function=None, training=None):
        return function(self.top(self.embed(inputs, training=training)))


class Unlike(tf_ext.Model):
    """It has fewer layers than when it was saved."""

    with_list = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = models.embed(models.column("user"))
        self.tops = [keras.layers.Dense(1)] if self.with_list else []
        self.other = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        tops = [top(embedded) for top in self.tops]
        return sum(tops, self.other(embedded))


class NeverCalled(tf_ext.Model):
    """Its layers are called by steps of its own alone."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = models.embed(models.column("user"))
        self.top = keras.layers.Dense(1)

    def score(self, inputs):
        return self.top(self.embed(inputs))


_CLASSES = {
    one.__name__: one
    for one in (
        Compared,
        NeverCalled,
        PlainCompared,
        PlainWithIntegers,
        PlainWithPart,
        WithFunction,
        Unlike,
    )
}


class RefusalTest(TestCase):
    def _save(self, model, **kwargs):
        """The path of a model that has been called."""
        model(_USERS, training=True, **kwargs)
        path = self.path("x.keras")
        model.save(path)
        return path

    def _load(self, path):
        with tf.keras.utils.custom_object_scope(_CLASSES):
            return keras.models.load_model(path)

    def test_what_keras_alone_cannot_build(self):
        model = PlainCompared()
        path = self._save(model)
        # tf_keras raises first; Keras 3 only warns.
        wanted = "float|the layers .*are not built: they would not be loaded"
        with self.assertRaisesRegex(Exception, wanted):
            self._load(path)
        again = PlainCompared()
        again(_USERS)
        again.load_weights(path)
        self.assertAllEqual(again(_USERS), model(_USERS))

    def test_arguments_that_are_not_recorded(self):
        path = self._save(WithFunction(), function=tf.identity)
        with self.assertRaisesRegex(
            ValueError,
            "'with_function.*' cannot be built as it was before it was saved. "
            "Make the model as .* call it on a batch, .*`load_weights`.*"
            "it was called with an argument of type function",
        ):
            self._load(path)

    def test_call_that_fails(self):
        path = self._save(Compared())
        with (
            mock.patch.object(Compared, "call", side_effect=OSError("no file")),
            self.assertRaisesRegex(
                ValueError,
                "cannot be built .*on a batch.*its call failed: (.|\n)*no file",
            ),
        ):
            self._load(path)

    def test_layers_that_are_not_built(self):
        model = Compared()
        path = self._save(model)
        with (
            mock.patch.object(Compared, "build_from_config", lambda *_: None),
            self.assertRaisesRegex(
                ValueError,
                "holds variables of the layers 'dense.*', which are not built: "
                "they would not be loaded, but keep random values. Make the "
                "model as .*, call it on a batch, and then load the same file",
            ),
        ):
            self._load(path)

    def test_files_of_shapes_alone(self):
        # As earlier versions wrote them.
        model = models.Part()
        expected = model(_USERS, training=True)
        path = self.path("x.keras")
        shapes = keras.Model.get_build_config
        with mock.patch.object(tf_ext.Model, "get_build_config", shapes):
            model.save(path)
        loaded = keras.models.load_model(path)
        self.assertAllClose(loaded(_USERS), expected, 1e-6, 1e-6)

    def test_layers_of_a_model_that_was_never_called(self):
        model = NeverCalled()
        expected = model.score(_USERS)
        path = self.path("x.keras")
        model.save(path)
        self.assertAllEqual(self._load(path).score(_USERS), expected)

    def test_what_keras_made_up_is_not_recorded(self):
        model = PlainWithPart()
        path = self._save(model)
        loaded = self._load(path)
        self.assertAllEqual(loaded(_USERS), model(_USERS))
        # The part alone, before it has been called with anything else.
        loaded = self._load(path)
        path = self.path("part.keras")
        loaded.part.save(path)
        part = keras.models.load_model(path)
        self.assertAllEqual(part(_USERS), model.part(_USERS))

    def test_columns_of_integers_in_a_model_of_keras(self):
        model = PlainWithIntegers()
        numbers = {"item": np.arange(3), "time": 3600 * np.arange(3)}
        features = {**_USERS, **numbers}
        model(features, training=True)
        path = self.path("x.keras")
        model.save(path)
        self.assertAllEqual(self._load(path)(features), model(features))

    def test_checkpoint_without_what_is_in_lists(self):
        path = self.path("checkpoint")
        with mock.patch.object(Unlike, "with_list", False):
            model = Unlike()
        model(_USERS, training=True)
        tf.train.Checkpoint(model=model).write(path)
        other = Unlike()
        other(_USERS)
        restore = tf.train.Checkpoint(model=other).read
        if not IS_KERAS_3:
            with self.assertRaises(AssertionError):
                restore(path).assert_existing_objects_matched()
            return
        with self.assertRaisesRegex(
            ValueError,
            "lacks 2 variables of model 'unlike.*', which are in lists or "
            "dicts of layers, such as 'unlike.*kernel'.* build the optimizer",
        ):
            restore(path)

    def test_checkpoint_of_a_layer_that_is_not_built(self):
        if not IS_KERAS_3:
            self.skipTest("TensorFlow restores tf_keras's variables later.")
        case = models.CASES["with_towers"]
        model = case.compiled()
        model.fit(case.batches(), verbose=0)
        path = self.path("checkpoint")
        tf.train.Checkpoint(model=model).write(path)
        other = case.compiled()
        other(case.inputs)
        with self.assertRaisesRegex(
            ValueError,
            "These are not built: .*Call model 'with_towers.*, and the layers "
            "that its call does not reach, on a batch first",
        ):
            tf.train.Checkpoint(model=other).read(path)
        case.build(other, case.inputs)
        tf.train.Checkpoint(model=other).read(path)
        self.assertAllEqual(case.predict(other), case.predict(model))

    def test_copies_of_a_configuration(self):
        case = models.SLOW_CASES["configured"]
        model = case.compiled()
        model.fit(case.batches(), verbose=0)
        copy = type(model).from_config(model.get_config())
        copy(case.inputs)
        names = [table.name for table in model.tables]
        self.assertEqual([table.name for table in copy.tables], names)
        self.assertNotAllClose(copy(case.inputs), model(case.inputs))
        copy.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
        path = self.path("x.weights.h5")
        model.save_weights(path)
        copy.load_weights(path)
        self.assertAllEqual(copy(case.inputs), model(case.inputs))


class RecordTest(TestCase):
    def test_hashed_features(self):
        """A model that only ever saw features that are hashed."""
        case = models.SLOW_CASES["configured"]
        model = case.compiled()
        [columns] = model.part.embed.columns
        hashed = tf_ext.data.hash_columns(case.batches(), columns)
        model.fit(hashed, verbose=0)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertAllEqual(case.predict(loaded), case.predict(model))

    def test_batch_size_is_forgotten(self):
        model = models.OfTensor()
        model(tf.constant([[1, 2]] * 7), training=False)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        loaded.tables[0].import_rows(*model.tables[0].export_rows())
        ids = np.arange(20).reshape(10, 2)
        self.assertAllClose(
            loaded(ids, training=False), model(ids, training=False)
        )


if __name__ == "__main__":
    tf.test.main()
