# SPDX-License-Identifier: Apache-2.0
"""Strategies of a single replica train as no strategy does.

TensorFlow merges even one replica under them, and not within a branch of a
step: of a loss scale, of steps that are left out, of accumulated gradients.
"""

import contextlib
import functools
import itertools
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from models import small_models
from models.model_building import number, rows_of

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer


@functools.cache
def _strategy(name):
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(["CPU:0"])
    if name == "multi_worker":
        return tf_ext.distribute.multi_worker_strategy()
    return tf.distribute.OneDeviceStrategy("CPU:0")


def _scope(name):
    return _strategy(name).scope() if name else contextlib.nullcontext()


def _optimizer(scaled, skip, **options):
    """Any kind of loss scale: "dynamic", a factor, or None."""
    if isinstance(scaled, float):
        options["loss_scale_factor"] = scaled
    dense = keras.optimizers.SGD(0.5, momentum=0.9, **options)
    on_nonfinite = "skip" if skip else "raise"
    make = functools.partial(
        tf_ext.optimizers.Optimizer, on_nonfinite=on_nonfinite
    )
    if scaled != "dynamic":
        return make(dense)
    # The scale grows within a test.
    scaling = {"initial_scale": 8.0, "dynamic_growth_steps": 2}
    if IS_KERAS_3:
        return make(_LossScaleOptimizer(dense, **scaling))
    return _LossScaleOptimizer(make(dense), **scaling)


def _data(skips):
    """Batches of 16, the last one of 8; the loss of the second may be NaN."""
    features, labels = small_models.batch(np.random.default_rng(3), 56)
    if skips:
        labels[20] = np.nan
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)


def _trained(name, data, path, policy, **kwargs):
    """What a model has after an epoch, and after another once loaded."""
    keras.mixed_precision.set_global_policy(policy)
    try:
        with _scope(name):
            model = small_models.functional(small_models.table("adagrad"))
            model.compile(_optimizer(**kwargs), "binary_crossentropy")
        model.fit(data, verbose=0)
        model.save(path)
        first = _state(model)
        with _scope(name):
            loaded = keras.models.load_model(path)
        loaded.fit(data, verbose=0)
        return first, _state(loaded)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def _state(model):
    optimizer = model.optimizer
    return {
        "rows": dict(sorted(rows_of(model.tables[0]).items())),
        "weights": model.get_weights(),
        "optimizer": [
            tf.convert_to_tensor(v).numpy() for v in optimizer.variables
        ],
        "steps": number(optimizer.iterations),
    }


def _cases():
    """All combinations, each of a strategy in turn."""
    sums = [{}, {"gradient_accumulation_steps": 2}] if IS_KERAS_3 else [{}]
    scales = [None, 64.0, "dynamic"] if IS_KERAS_3 else [None, "dynamic"]
    clips = itertools.cycle([{}, {"global_clipnorm": 0.1}, {"clipnorm": 0.05}])
    names = itertools.cycle(["mirrored", "multi_worker", "mirrored", "device"])
    for policy, scaled, skip, summed in itertools.product(
        ["float32", "mixed_float16"], scales, [False, True], sums
    ):
        case = {"policy": policy, "scaled": scaled, "skip": skip}
        yield next(names), {**case, **summed, **next(clips)}


class OneReplicaTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_replica_")
        self.folder = self.enterContext(folder)

    def assert_same(self, name, case):
        skips = case["skip"] or case["scaled"] == "dynamic"
        data = _data(skips)
        path = os.path.join(self.folder, "model.keras")
        expected = _trained(None, data, path, **case)
        if IS_KERAS_3:  # tf_keras counts the steps that a scale leaves out.
            each = case.get("gradient_accumulation_steps", 1)
            self.assertEqual(expected[0]["steps"], (4 - skips) // each)
        found = _trained(name, data, path, **case)
        for one, other in zip(expected, found):
            self.assertAllEqual(one["rows"].keys(), other["rows"].keys())
            tf.nest.map_structure(self.assertAllEqual, one, other)

    def test_skips_steps_under_multi_worker_strategy(self):
        case = {"policy": "float32", "scaled": None, "skip": True}
        self.assert_same("multi_worker", case)

    def test_scales_clips_and_accumulates_under_mirrored_strategy(self):
        case = {"policy": "mixed_float16", "scaled": None, "skip": False}
        if IS_KERAS_3:
            case["gradient_accumulation_steps"] = 2
        self.assert_same("mirrored", {**case, "global_clipnorm": 0.1})

    @pytest.mark.slow
    def test_all_combinations(self):
        for name, case in _cases():
            with self.subTest(strategy=name, **case):
                self.assert_same(name, case)


if __name__ == "__main__":
    absltest.main()
