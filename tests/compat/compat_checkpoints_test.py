# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's savers still ask what they asked, and tell as little."""

import os
import tempfile

import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import checkpoints
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases


class _Resource(checkpoints.SavedResource):
    """A text, as a resource that checkpoints hold."""

    def __init__(self, text, exportable=True):
        super().__init__()
        self.text = text
        self.seen = []
        self.exportable = exportable

    def _create_resource(self):
        return tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.string, value_dtype=tf.int64
        )

    def _initialize(self):
        pass

    def _saved_tensors(self):
        saved = checkpoints.tensors_being_restored()
        self.seen.append(
            None if saved is None else {k: v() for k, v in saved.items()}
        )
        return {"text": tf.constant(self.text)}

    def _restore_tensors(self, tensors):
        if tf.executing_eagerly():  # A SavedModel has a graph of it.
            self.text = tensors["text"].numpy().decode()
        return tf.no_op()

    def _check_exportable(self):
        if not self.exportable:
            raise NotImplementedError("not in a SavedModel")


class ResourceTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_is_saved_and_sees_what_is_restored(self):
        one, two = _Resource("one"), _Resource("two")
        path = tf.train.Checkpoint(resource=one).save(f"{self.folder}/c")
        self.assertEqual(set(map(str, one.seen)), {"None"})
        tf.train.Checkpoint(resource=two).restore(path).assert_consumed()
        self.assertEqual(two.text, "one")
        self.assertIn({"text": b"one"}, two.seen)

    def test_one_with_public_hooks_alone_is_not_saved(self):
        class Plain(tf.saved_model.experimental.TrackableResource):
            _create_resource = _Resource._create_resource

            def _saved_tensors(self):
                raise AssertionError

        path = tf.train.Checkpoint(resource=Plain()).save(f"{self.folder}/c")
        names = [name for name, _ in tf.train.list_variables(path)]
        self.assertFalse([name for name in names if "resource" in name])

    def test_is_asked_before_it_is_exported(self):
        module = tf.Module()
        module.resource = _Resource("one")
        tf.saved_model.save(module, os.path.join(self.folder, "m"))
        module.resource = _Resource("one", exportable=False)
        with self.assertRaisesRegex(NotImplementedError, "not in a SavedModel"):
            tf.saved_model.save(module, os.path.join(self.folder, "n"))


class _WithChild(checkpoints.OwnChildren, keras.Model):
    """A model of a list of layers, of which it names the first itself."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1)]
        self.parts[0].build([None, 1])

    def _saved_children(self, children, kind):
        return {**children, "tf_ext_own": self.parts[0]}

    def _own_child(self, name):
        return self.parts[0] if name == "tf_ext_own" else None


class _WithList(keras.layers.Layer):
    """A layer with a list of a layer, and one of a variable."""

    def __init__(self):
        super().__init__()
        self.inner = [keras.layers.Dense(1)]
        self.own = [self.add_weight(shape=(1,), name="own")]


class ChildrenTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def _saved_names(self, model):
        path = tf.train.Checkpoint(model).save(f"{self.folder}/c")
        return path, [name for name, _ in tf.train.list_variables(path)]

    def test_are_saved_and_found_again(self):
        one, two = _WithChild(), _WithChild()
        one.parts[0].kernel.assign([[7.0]])
        path, names = self._saved_names(one)
        self.assertTrue([n for n in names if n.startswith("tf_ext_own/")])
        tf.train.Checkpoint(two).restore(path).expect_partial()
        self.assertEqual(float(two.parts[0].kernel[0, 0]), 7.0)

    @absltest.skipUnless(IS_KERAS_3, "tf_keras hides none")
    def test_keras_hides_lists(self):
        class Plain(keras.Model):
            def __init__(self):
                super().__init__()
                self.parts = [keras.layers.Dense(1)]
                self.parts[0].build([None, 1])

        _, names = self._saved_names(Plain())
        self.assertFalse([n for n in names if "kernel" in n], names)

    @absltest.skipUnless(IS_KERAS_3, "tf_keras hides none")
    def test_hidden_children(self):
        class Owner(keras.Model):
            def __init__(self):
                super().__init__()
                self.seen = keras.layers.Dense(1)
                self.parts = [(keras.layers.Dense(1),), {"b": _WithList()}]

        owner = Owner()
        hidden = checkpoints.hidden_children(owner)
        self.assertEqual(
            hidden,
            {
                ".layers.1": owner.parts[0][0],
                ".layers.2": owner.parts[1]["b"],
                ".layers.2.layers.0": owner.parts[1]["b"].inner[0],
                ".layers.2.variables.0": owner.parts[1]["b"].own[0],
            },
        )

    @absltest.skipUnless(IS_KERAS_3, "tf_keras restores variables later")
    def test_unbuilt_layers_being_restored(self):
        found = []

        class Seeing(_WithChild):
            def __init__(self, units):
                super().__init__()
                self.other = keras.layers.Dense(1)
                if units:
                    self.other.build([None, 1])

            def _own_child(self, name):
                if name == "tf_ext_own":
                    names = checkpoints.children_being_restored()
                    layers = checkpoints.unbuilt_layers_being_restored(self)
                    found.append((names, layers))
                return super()._own_child(name)

        path, _ = self._saved_names(Seeing(1))
        for units in (1, 0):
            found.clear()
            model = Seeing(units)
            tf.train.Checkpoint(model).restore(path).expect_partial()
            [(names, layers)] = found
            self.assertContainsSubset({"other", "tf_ext_own"}, names)
            self.assertEqual(layers, [] if units else [model.other])
        self.assertEqual(checkpoints.children_being_restored(), set())
        self.assertEqual(checkpoints.unbuilt_layers_being_restored(model), [])

    def test_are_in_saved_models(self):
        model = _WithChild()
        module = tf.Module()
        module.model = model
        path = os.path.join(self.folder, "m")
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        self.assertTrue(hasattr(loaded.model, "tf_ext_own"))


if __name__ == "__main__":
    absltest.main()
