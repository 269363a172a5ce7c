# SPDX-License-Identifier: Apache-2.0
"""The order of shuffled files in the epochs of `fit`."""

import pathlib
import tempfile

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models.number_models import logging_model

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "EpochsTest::test_a_restart_continues_the_epoch6",
        "EpochsTest::test_each_epoch_has_its_own_order_read",
        "EpochsTest::test_without_shuffle_nothing_changes",
    ),
]

RECORDS, BATCH = 24, 5
STEPS = 5  # of an epoch


class _KilledError(Exception):
    pass


def _wrapped(data):
    other = tf.data.Dataset.range(100)
    data = data.map(lambda x, y: (x, y)).prefetch(2)
    return tf.data.Dataset.zip(data, other).map(lambda batch, _: batch)


_WRAPPERS = {
    "read": lambda data: data,
    "derived": _wrapped,
    "relaxed": tf_ext.data.variable_batch_size,
}


class EpochsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)
        for part in range(2):
            numbers = range(part * RECORDS // 2, (part + 1) * RECORDS // 2)
            lines = "".join(f"{number}\t1\n" for number in numbers)
            (self.folder / f"part-{part}").write_text(lines)

    def read(self, seed=0, **options):
        schema = tf_ext.data.Schema(
            [
                tf_ext.data.Field("number", "int64"),
                tf_ext.data.Field("label", "float32"),
            ],
            label="label",
        )
        return tf_ext.data.read(
            self.folder / "part-*",
            schema,
            "tsv",
            batch_size=BATCH,
            shuffle=RECORDS,
            seed=seed,
            **options,
        )

    def fit(self, data, epochs=3, callbacks=(), scope=None, **options):
        """Trains; the numbers of all steps, by epoch."""
        log = pathlib.Path(self.folder / "log.txt")
        log.unlink(missing_ok=True)

        with scope or tf.distribute.get_strategy().scope():
            model = logging_model(log)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.set_model(model)
        try:
            model.fit(
                data,
                epochs=epochs,
                verbose=0,
                callbacks=callbacks,
                **options,
            )
        except _KilledError:
            pass
        text = log.read_text().replace("[", " ").replace("]", " ")
        return [int(number) for number in text.split()]

    def assert_reshuffled(self, numbers, epochs=3):
        orders = [
            tuple(numbers[first : first + RECORDS])
            for first in range(0, len(numbers), RECORDS)
        ]
        self.assertLen(set(orders), epochs)
        for order in orders:
            self.assertCountEqual(order, range(RECORDS))

    @parameterized.named_parameters(*_WRAPPERS.items())
    def test_each_epoch_has_its_own_order(self, wrap):
        data = wrap(self.read())
        numbers = self.fit(data)
        self.assert_reshuffled(numbers)
        self.assertEqual(self.fit(data), numbers)
        self.assertEqual(self.fit(wrap(self.read())), numbers)
        self.assertNotEqual(self.fit(wrap(self.read(seed=1))), numbers)
        # An epoch's order is that of its number, not of what was read before.
        last = self.fit(data, initial_epoch=2)
        self.assertEqual(last, numbers[2 * RECORDS :])
        # Other readers find the order of the first epoch.
        for _ in range(2):
            read = [n for x, _ in data for n in x["number"].numpy().tolist()]
            self.assertEqual(read, numbers[:RECORDS])

    @parameterized.parameters(
        *(("read", step) for step in (3, 5, 7, 11)),
        *((name, 7) for name in ("derived", "relaxed", "cached")),
    )
    def test_a_restart_continues_the_epoch(self, name, step):
        # All epochs have the order of the first one then.
        caches = {"cached": lambda data: data.cache()}
        wrap = {**_WRAPPERS, **caches}[name]
        whole = self.fit(wrap(self.read()))

        class Kill(keras.callbacks.Callback):
            left = step

            def on_train_batch_end(self, batch, logs=None):
                self.left -= 1

            def on_train_batch_begin(self, batch, logs=None):
                if not self.left:  # Behind the point of that step.
                    raise _KilledError

        points = self.folder / "points"
        read = []
        for callbacks in ([Kill()], []):
            point = tf_ext.callbacks.TableSnapshot(points, steps=1)
            callbacks = [point, *callbacks]
            read += self.fit(wrap(self.read()), callbacks=callbacks)
        self.assertEqual(read, whole)

    def test_callbacks_of_all_kinds(self):
        whole = self.fit(self.read())
        seen = []
        count = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _: seen.append(epoch)
        )
        listed = keras.callbacks.CallbackList([count], add_history=True)
        for callbacks in (None, count, (count,), listed):
            numbers = self.fit(self.read(), callbacks=callbacks)
            self.assertEqual(numbers, whole)
        self.assertEqual(seen, [0, 1, 2] * 3)
        self.assertEqual(listed.callbacks[0], count)
        self.assertNotIn(
            "_Teller", [type(one).__name__ for one in listed.callbacks]
        )

    def test_epochs_of_steps_are_one_iteration(self):
        data = self.read(repeat=True)
        numbers = self.fit(data, steps_per_epoch=STEPS - 1)
        expected = [
            n
            for x, _ in data.take(3 * (STEPS - 1))
            for n in x["number"].numpy().tolist()
        ]
        self.assertEqual(numbers, expected)

    def test_without_shuffle_nothing_changes(self):
        schema = tf_ext.data.Schema(
            [
                tf_ext.data.Field("number", "int64"),
                tf_ext.data.Field("label", "float32"),
            ],
            label="label",
        )
        data = tf_ext.data.read(
            self.folder / "part-*", schema, "tsv", batch_size=BATCH
        )
        self.assertEqual(self.fit(data), [*range(RECORDS)] * 3)


if __name__ == "__main__":
    absltest.main()
