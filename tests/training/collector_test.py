# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles spares old objects while streams are read."""

import gc
import tempfile

import tensorflow as tf
from absl.testing import absltest
from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras
from tf_ext.training.collector import sparing_old_objects


class CollectorTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # Processes that are forked for tests spare what there was before.
        gc.unfreeze()
        self.addCleanup(gc.unfreeze)

    def test_a_block(self):
        for is_read, spared in ((True, True), (False, False), ([], False)):
            with sparing_old_objects(is_read):
                self.assertEqual(gc.get_freeze_count() > 0, spared)
            self.assertEqual(gc.get_freeze_count(), 0)

    def test_new_cycles_are_freed(self):
        with sparing_old_objects(True):
            cycle = []
            cycle.append(cycle)
            del cycle
            self.assertGreater(gc.collect(), 0)

    def test_errors(self):
        with self.assertRaises(KeyError), sparing_old_objects(True):
            raise KeyError
        self.assertEqual(gc.get_freeze_count(), 0)

    def test_what_the_program_spares_itself(self):
        gc.freeze()
        count = gc.get_freeze_count()
        with sparing_old_objects(True):
            self.assertLessEqual(gc.get_freeze_count(), count)
        self.assertGreater(gc.get_freeze_count(), 0)

    def test_fit(self):
        counts = []

        class Counts(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                counts.append(gc.get_freeze_count())

        folder = self.enterContext(tempfile.TemporaryDirectory())
        with open(f"{folder}/part", "w") as file:
            file.write("1,1\n" * 8)
        stream = tf_ext.data.stream(
            tf_ext.data.DirectorySource(folder),
            models.SCHEMA,
            batch_size=8,
            follow=False,
        )
        ids = tf.data.Dataset.from_tensors(
            ({"user": tf.range(8)}, tf.zeros([8]))
        )
        model, _ = models.counting_model()
        for data in (stream, ids):
            model.fit(data, verbose=0, callbacks=[Counts()])
            self.assertEqual(gc.get_freeze_count(), 0)
        self.assertGreater(counts[0], 1000)
        self.assertEqual(counts[1], 0)


if __name__ == "__main__":
    absltest.main()
