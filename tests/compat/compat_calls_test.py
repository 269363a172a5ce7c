# SPDX-License-Identifier: Apache-2.0
"""Keras's running calls still tell what it does not."""

import os
import tempfile

import pytest
import tensorflow as tf
from absl.testing import absltest
from models.model_building import mirrored_strategy

from tf_ext._compat import calls, variables
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases

_seen = []


@keras.utils.register_keras_serializable(package="compat_calls_test")
class _Recorder(keras.layers.Layer):
    """A layer that looks at the running calls when it is made or saved."""

    options = {"shared": True}  # noqa: RUF012

    def get_config(self):
        return {**super().get_config(), "options": self.options}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        kept = calls.kept_while_layers_are_made("_compat_calls_test")
        _seen.append((kept, config.pop("options")))
        return cls(**config)

    def call(self, inputs):
        return inputs

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        if save_type == "savedmodel":
            _seen.append(calls.is_saving_to_train_on())
        return super()._trackable_children(save_type, **kwargs)


def _model():
    inputs = keras.Input([1])
    return keras.Model(inputs, _Recorder()(_Recorder()(inputs)))


class CallsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        _seen.clear()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_layers_of_one_call_are_told(self):
        model = _model()
        path = os.path.join(self.folder, "m.keras")
        model.save(path)
        for make in (
            lambda: keras.models.clone_model(model),
            lambda: keras.models.load_model(path),
            lambda: keras.Model.from_config(model.get_config()),
        ):
            _seen.clear()
            make()
            (one, _), (two, _) = _seen
            self.assertIs(one, two)
            make()
            self.assertIsNot(one, _seen[-1][0])
        _Recorder.from_config({"options": {}})
        _Recorder.from_config({"options": {}})
        self.assertIsNot(_seen[-1][0], _seen[-2][0])

    def test_keras_itself_copies_what_layers_share(self):
        path = os.path.join(self.folder, "m.keras")
        _model().save(path)
        _seen.clear()
        keras.models.load_model(path)
        (_, one), (_, two) = _seen
        self.assertEqual(one, two)
        self.assertIsNot(one, two)

    def test_building_by_shapes_is_told(self):
        seen = []

        @keras.utils.register_keras_serializable(package="compat_calls_test")
        class Model(keras.Model):
            def call(self, inputs):
                types = [one.dtype for one in tf.nest.flatten(inputs)]
                seen.append((calls.is_building_by_shapes(), types[0]))
                return inputs["a"]

        model = Model()
        model({"a": tf.constant([[1]])})
        self.assertNotIn(True, [is_building for is_building, _ in seen])
        path = os.path.join(self.folder, "m.keras")
        model.save(path)
        seen.clear()
        keras.models.load_model(path)
        self.assertEqual(seen, [(True, tf.float32)])

    def test_keras_file_being_loaded(self):
        seen = []

        class Dense(keras.layers.Dense):
            def load_own_variables(self, store):
                found = calls.keras_file_being_loaded()
                seen.append(found and (found[0], list(found[1].h5_file)))
                super().load_own_variables(store)

        inputs = keras.Input([1])
        model = keras.Model(inputs, Dense(1)(inputs))
        path = os.path.join(self.folder, "m.weights.h5")
        model.save_weights(path)
        model.load_weights(path)
        [(root, names)] = seen
        self.assertIs(root, model)
        self.assertIn("layers", names)
        seen.clear()
        model.load_weights(path, skip_mismatch=True)
        self.assertIsNone(seen.pop())
        self.assertIsNone(calls.keras_file_being_loaded())

    def test_local_in(self):
        place = 1
        self.assertEqual(calls.local_in(__name__, "place"), place)
        self.assertIsNone(calls.local_in(__name__, "other"))

    def test_saving_to_serve_is_told_from_saving_to_train(self):
        model = _model()
        model(tf.ones([1, 1]))
        tf.saved_model.save(model, os.path.join(self.folder, "serves"))
        self.assertSetEqual(set(_seen), {False})
        if not IS_KERAS_3:
            _seen.clear()
            model.save(os.path.join(self.folder, "trains"))
            self.assertIn(True, _seen)

    def test_the_model_in_fit_is_found_where_all_replicas_meet(self):
        found = []

        class Model(keras.Model):
            def train_step(self, data):
                found.append(("replica", calls.model_in_fit()))
                tf.distribute.get_replica_context().merge_call(
                    lambda _: found.append(("all", calls.model_in_fit()))
                )
                return {"loss": tf.constant(0.0)}

        with mirrored_strategy().scope():
            inputs = keras.Input([1])
            model = Model(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse")
        model.fit(tf.ones([4, 1]), tf.ones([4, 1]), verbose=0)
        self.assertTrue(found)
        for where, one in found:
            self.assertIs(one, model if where == "all" else None, where)
        self.assertIsNone(calls.model_in_fit())

    def test_set_weights_is_told_from_another_assignment(self):
        within = []
        layer = keras.layers.Dense(1)
        layer.build([None, 1])
        base = type(layer.kernel)

        def assign(self, value, *args, **kwargs):
            within.append(calls.is_within("set_weights"))
            return base.assign(self, value, *args, **kwargs)

        values = [layer.kernel, getattr(layer.kernel, "value", None)]
        variable = next(v for v in values[::-1] if isinstance(v, tf.Variable))
        base = type(variable)
        variables.give_own_class(variable, {"assign": assign})
        layer.kernel.assign([[1.0]])
        layer.set_weights(layer.get_weights())
        self.assertEqual(within, [False, True])

    def test_an_object_whose_method_runs_is_found(self):
        class Asking:
            def __init__(self):
                self.answer = calls.local_in(__name__, "self", "position")
                self.position = 1

            def ask(self):
                return calls.local_in(__name__, "self", "position")

        self.assertIsNone(Asking().answer)
        asking = Asking()
        self.assertIs(asking.ask(), asking)
        self.assertIsNone(calls.local_in("another_module", "self", "position"))

    def test_the_caller_of_the_caller(self):
        def asked():
            return calls.caller_of_caller()

        def asking():
            return asked()

        self.assertEqual(asking(), "asking")


if __name__ == "__main__":
    absltest.main()
