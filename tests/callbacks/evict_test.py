# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy
from models.sharded_tables import bytes_of_rows
from models.small_models import batch, compiled, functional, table

from tf_ext import eviction
from tf_ext._keras import keras
from tf_ext.callbacks import Evict, TableSnapshot

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "EvictTest::test_at_multiples_of_steps1",
        "EvictTest::test_in_a_training_that_goes_on0",
        "EvictTest::test_is_in_files_of_keras",
    ),
]

_STEPS, _BATCH = 12, 8
_POLICY = eviction.Unseen(steps=4)


class _Seen(keras.callbacks.Callback):
    """Which signs there are after each step, and the optimizer's step."""

    def __init__(self):
        super().__init__()
        self.signs = {}

    def on_train_batch_end(self, batch, logs=None):
        step = int(tf.convert_to_tensor(self.model.optimizer.iterations))
        signs, _ = self.model.tables[0].export_rows()
        self.signs[step] = set(signs.tolist())


class EvictTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.arrays = batch(generator(self), _STEPS * _BATCH, ids=200)
        self.data = tf.data.Dataset.from_tensor_slices(self.arrays)
        self.data = self.data.batch(_BATCH)

    def _model(self, policy=_POLICY, **options):
        return compiled(functional(table(eviction=policy)), **options)

    def _signs(self, begin, end):
        """Those of the steps from `begin` on."""
        part = slice(begin * _BATCH, end * _BATCH)
        return set(self.arrays[0]["user"][part].tolist()) | set(
            self.arrays[0]["items"][part].ravel().tolist()
        )

    @parameterized.parameters(1, 3)
    def test_at_multiples_of_steps(self, steps_per_execution):
        model = self._model(steps_per_execution=steps_per_execution)
        seen, evict = _Seen(), Evict(steps=6)
        model.fit(self.data, epochs=2, callbacks=[evict, seen], verbose=0)
        self.assertEqual(seen.signs[6], self._signs(2, 6))
        self.assertEqual(seen.signs[9], self._signs(2, 9))
        self.assertEqual(seen.signs[12], self._signs(8, 12))
        self.assertEqual(seen.signs[18], self._signs(2, 6))
        self.assertEqual(seen.signs[24], self._signs(8, 12))
        examined, evicted = evict.evicted["deep"]
        self.assertEqual(examined - evicted, len(self._signs(8, 12)))
        self.assertGreater(evicted, 0)

    def test_under_mirrored_strategy(self):
        with mirrored_strategy().scope():
            model = self._model()
        seen = _Seen()
        model.fit(self.data, callbacks=[Evict(steps=6), seen], verbose=0)
        self.assertEqual(seen.signs[6], self._signs(2, 6))
        self.assertEqual(seen.signs[12], self._signs(8, 12))

    @parameterized.parameters(7, 5)
    def test_in_a_training_that_goes_on(self, steps):
        """Also if a point is of a step of which an eviction is."""
        whole, callback = self._model(), Evict(steps=5)
        whole.fit(self.data, epochs=2, callbacks=[callback], verbose=0)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        for epochs, limit in ((1, 8), (2, None)):
            model = self._model()
            callbacks = [TableSnapshot(folder, steps=steps), Evict(steps=5)]
            if limit is not None:
                callbacks.append(_Stop(limit))
            try:
                model.fit(self.data, epochs=2, callbacks=callbacks, verbose=0)
            except KeyboardInterrupt:
                self.assertEqual(epochs, 1)
        self.assertEqual(
            bytes_of_rows(model.tables[0]), bytes_of_rows(whole.tables[0])
        )

    def test_is_in_files_of_keras(self):
        model = self._model()
        model.fit(self.data, verbose=0)
        path = os.path.join(
            tempfile.mkdtemp(dir=self.get_temp_dir()), "model.keras"
        )
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertEqual(
            bytes_of_rows(loaded.tables[0]), bytes_of_rows(model.tables[0])
        )
        self.assertEqual(repr(loaded.tables[0].eviction), "Unseen(steps=4)")
        self.assertEqual(
            loaded.tables[0].evict(now=10**6).evicted,
            len(bytes_of_rows(model.tables[0])),
        )

    def test_steps_that_a_later_callback_restores(self):
        class Restore(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                self.model.optimizer.iterations.assign(13)

        model, acted = self._model(), []

        class Steps(Evict):
            def act(self, step, logs):
                acted.append(step)

        data = self.data.take(8)
        model.fit(data, callbacks=[Steps(steps=10), Restore()], verbose=0)
        self.assertEqual(acted, [20])
        # A later `fit` goes on from there.
        model.optimizer.iterations.assign(28)
        model.fit(data, callbacks=[Steps(steps=10)], verbose=0)
        self.assertEqual(acted, [20, 30])

    def test_decay_comes_first(self):
        counted = table(eviction=eviction.Score(1), statistics=["show"])
        model = compiled(functional(counted))
        evict = Evict(steps=6, decay=0.5)
        model.fit(self.data, callbacks=[evict], verbose=0)
        _, fields = model.tables[0].export_rows()
        # What has less than 2 before the decay goes in step 12.
        self.assertGreaterEqual(fields["show"].min(), 1)
        self.assertGreater(evict.evicted["deep"].evicted, 0)
        self.assertEqual(
            model.tables[0].size(),
            evict.evicted["deep"].examined - evict.evicted["deep"].evicted,
        )

    @parameterized.parameters(0, -0.5, 1.5, True, "1", float("nan"))
    def test_refuses_decay(self, decay):
        with self.assertRaisesRegex(
            ValueError, "Argument `decay` of Evict must be above 0"
        ):
            Evict(steps=1, decay=decay)

    def test_refuses_models_without_statistics(self):
        model = self._model()
        with self.assertRaisesRegex(ValueError, "was made with `statistics`"):
            model.fit(self.data, callbacks=[Evict(999, decay=0.5)], verbose=0)
        # Before the first step.
        self.assertEqual(model.tables[0].size(), 0)

    @parameterized.parameters(0, -1, 1.5, True, "1")
    def test_refuses_steps(self, steps):
        with self.assertRaisesRegex(
            ValueError, "Argument `steps` of Evict must be an integer"
        ):
            Evict(steps=steps)

    def test_refuses_models_without_eviction(self):
        model = self._model(None)
        with self.assertRaisesRegex(
            ValueError, "The model of Evict must have a table that was made"
        ):
            model.fit(self.data, callbacks=[Evict(steps=999)], verbose=0)
        self.assertEqual(model.tables[0].size(), 0)


class _Stop(keras.callbacks.Callback):
    """Ends a process as far as `fit` can tell."""

    def __init__(self, after):
        super().__init__()
        self._after = after

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self._after:
            raise KeyboardInterrupt


if __name__ == "__main__":
    tf.test.main()
