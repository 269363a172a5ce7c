# SPDX-License-Identifier: Apache-2.0
"""Recovery points have what other callbacks do after their step."""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator
from models.small_models import batch, compiled, functional, table
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.callbacks import TableSnapshot
from tf_ext.recovery import files

pytestmark = pytest.mark.both_kerases(slow=True)

_BATCHES = 4


class _Halved(keras.callbacks.Callback):
    """Halves the rate when an epoch ends; may end the process in one."""

    def __init__(self, killed_in=None):
        super().__init__()
        self._killed_in = killed_in

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._killed_in:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate / 2)


class _Worse(keras.callbacks.Callback):
    """Each epoch is worse than the one before."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def on_epoch_end(self, epoch, logs=None):
        logs["watched"] = float(epoch)
        self.rows.append(_rows(self.model.tables[0]))


def _rows(table):
    signs, fields = table.export_rows()
    rows = fields["weights"].tolist()
    return dict(zip(signs.tolist(), rows, strict=True))


class PointsComeLastTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def fit(self, callbacks, **options):
        model = compiled(functional(table()))
        model.fit(
            *batch(generator(self), 8 * _BATCHES),
            batch_size=8,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
            **options,
        )
        return model

    @parameterized.parameters(0, 1)
    def test_what_the_end_of_an_epoch_changes(self, at):
        def callbacks(*args):
            found = [_Halved(*args)]
            found.insert(at, TableSnapshot(self.root))
            return found

        whole = self.fit([_Halved()], epochs=4)
        with self.assertRaises(KeyboardInterrupt):
            self.fit(callbacks(2), epochs=4)
        model = self.fit(callbacks(), epochs=4)
        rates = [
            float(tf.convert_to_tensor(each.optimizer.learning_rate))
            for each in (model, whole)
        ]
        self.assertEqual(*rates)
        self.assertEqual(_rows(model.tables[0]), _rows(whole.tables[0]))

    @parameterized.product(epochs=[9, 2], at=[0, 2], steps=[5, None])
    def test_not_what_is_restored_when_training_ends(self, epochs, at, steps):
        seen = _Worse()
        stop = tf_ext.callbacks.EarlyStopping(
            "watched", mode="min", patience=2, restore_best_weights=True
        )
        callbacks = [seen, stop]
        callbacks.insert(at, TableSnapshot(self.root, steps=steps))
        model = self.fit(callbacks, epochs=epochs)
        made = min(epochs, 3)
        self.assertLen(seen.rows, made)
        # Keras 3 restores the best epoch in any case, tf_keras if it stopped.
        if stop.stopped_epoch or IS_KERAS_3:
            self.assertEqual(_rows(model.tables[0]), seen.rows[0])
        last = files.list_points(self.root)[-1]
        self.assertEqual(files.read_point(last).step, made * _BATCHES)
        copy = table()
        copy.load(files.table_path(last, 0))
        self.assertEqual(_rows(copy), seen.rows[-1])

    def test_a_list_of_keras(self):
        snapshot, other = TableSnapshot(self.root), _Halved()
        given = keras.callbacks.CallbackList(
            [snapshot, other], add_history=True
        )
        model = compiled(functional(table()))
        given.set_model(model)
        given.set_params({"epochs": 1})
        model.fit(*batch(generator(self), 8), verbose=0, callbacks=given)
        self.assertIs(given.callbacks[-1], snapshot)
        self.assertIn(other, given.callbacks)


if __name__ == "__main__":
    parameterized.absltest.main()
