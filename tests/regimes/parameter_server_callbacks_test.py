# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras on a cluster, with a model that has a table."""

import csv
import json
import pathlib
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from killed_training import Kill, KilledError
from models import small_models
from models.model_building import generator, number
from models.small_models import compiled, functional, table
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.regimes import clock

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "EvictTest::test_capacity_is_divided_over_servers",
    ),
]

setUpModule = util.shared


class _Copies(keras.callbacks.Callback):
    """Copies the model's state each epoch, of which the second is the best."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_epoch_end(self, epoch, logs=None):
        self.found.append((_dense(self.model), contents(self.model.tables[0])))
        logs["watched"] = (3.0, 1.0, 2.0, 2.5, 0.0, 0.0)[epoch]


class _Test(TestCase):
    def data(self, size=256):
        features, labels = small_models.batch(generator(self), size)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    def make(self, strategy=None, dense=None, rule="adagrad"):
        strategy = strategy or util.shared().strategy
        with strategy.scope():
            dense = dense or keras.optimizers.SGD(0.5, momentum=0.9)
            return compiled(functional(table(rule)), dense, metrics=["AUC"])

    def alone(self, **options):
        """The same model in one process."""
        return self.make(tf.distribute.get_strategy(), **options)

    def assert_same_model(self, found, expected):
        for here, there in zip(_dense(expected), _dense(found), strict=True):
            self.assertAllClose(there, here, 1e-6, 1e-6)
        here, there = (contents(m.tables[0]) for m in (expected, found))
        for field, rows in here.items():
            self.assertCountEqual(there[field], rows)
            for sign, values in rows.items():
                self.assertAllClose(there[field][sign], values, 1e-6, 1e-6)
        self.assertEqual(
            number(found.optimizer.iterations),
            number(expected.optimizer.iterations),
        )


def _dense(model):
    """Values of the model's dense weights and their slots."""
    weights = [w for layer in model.layers[-1:] for w in layer.weights]
    optimizer = (
        getattr(model.optimizer, "inner_optimizer", None) or model.optimizer
    )
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    return [np.asarray(tf.convert_to_tensor(w)) for w in weights] + [
        np.asarray(tf.convert_to_tensor(v))
        for v in variables
        if "momentum" in getattr(v, "path", v.name)
    ]


class TableStatsTest(_Test):
    def test_reports_are_of_all_servers(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        model = self.make()
        stats = tf_ext.callbacks.TableStats(folder, every=8)
        # A counter of steps may be ahead of the rows of those under way.
        model.fit(
            self.data(),
            callbacks=[stats],
            verbose=0,
            max_inflight_steps=1,
        )
        lines = pathlib.Path(folder, "tables.jsonl").read_text().splitlines()
        reports = [json.loads(line) for line in lines]
        self.assertEqual(reports[-1], stats.report)
        self.assertEqual(reports[-1]["step"], 16)
        self.assertGreaterEqual(reports[-1]["staleness"], 0)
        [found], [deep] = reports[-1]["tables"], model.tables
        for shard, expected in zip(
            found["shards"], deep.shard_stats(), strict=True
        ):
            for name in ("rows", "bytes", "updated"):
                self.assertEqual(shard[name], expected[name], name)
            self.assertEqual(shard["weights"]["sampled"], shard["rows"])
            self.assertGreater(shard["rows"], 0)
        self.assertLen(found["shards"], 2)
        self.assertEqual(found["rows"], deep.size())
        weights = deep.export_rows()[1]["weights"]
        self.assertAllClose(found["weights"]["mean"], weights.mean(), 1e-5)
        self.assertTrue(list(pathlib.Path(folder).glob("events.*")))


class EvictTest(_Test):
    def test_rows_on_servers_go(self):
        policy = tf_ext.eviction.Unseen(steps=10)
        with util.shared().strategy.scope():
            model = compiled(functional(table("sgd", eviction=policy)))
        deep = model.tables[0]
        deep.import_rows([901, 902], {"weights": np.ones([2, 4], np.float32)})
        evict = tf_ext.callbacks.Evict(steps=8)
        model.fit(self.data(), epochs=2, callbacks=[evict], verbose=0)
        # At step 8 they begin to age, and they go 16 steps later.
        signs, fields = deep.export_rows()
        self.assertNotIn(901, signs)
        self.assertNotIn(902, signs)
        self.assertAllInRange(fields["last_seen"], 14, 32)
        self.assertEqual(deep.evict(now=42), (len(signs), len(signs)))
        self.assertEqual(deep.size(), 0)

    def test_seconds_are_those_of_the_server_of_a_row(self):
        policy = tf_ext.eviction.Unseen(seconds=600)
        with util.shared().strategy.scope():
            model = compiled(functional(table("sgd", eviction=policy)))
        read, seconds = [], clock.seconds

        def note():
            present = seconds()
            read.append(present.device)
            return present

        before = int(seconds())
        with mock.patch.object(clock, "seconds", note):
            model.fit(self.data(), verbose=0)
            shards = model.tables[0].rows.shards
            in_steps = [device for device in read if "/job:ps/" in device]
            self.assertEqual(set(in_steps), {shard.device for shard in shards})
            self.assertEqual(in_steps, read)
            read.clear()
            examined, evicted = model.tables[0].evict()
        self.assertEqual(read, [shard.device for shard in shards])
        self.assertGreater(examined, 0)
        self.assertEqual(evicted, 0)
        seen = model.tables[0].export_rows()[1]["last_seen"] + 1_577_836_800
        self.assertAllInRange(seen, before, int(seconds()))

    def test_rows_come_and_go_as_in_one_process(self):
        data = small_models.batch(generator(self), 384, ids=150)
        data = tf.data.Dataset.from_tensor_slices(data).batch(16)
        unseen, score = tf_ext.eviction.Unseen(6), tf_ext.eviction.Score
        found = []
        for strategy, options in (
            (tf.distribute.get_strategy(), {}),
            (util.shared().strategy, {"max_inflight_steps": 1}),
        ):
            with strategy.scope():
                deep = table(
                    "adagrad",
                    admission=tf_ext.admission.Count(2, forget=3),
                    unknown="zeros",
                    eviction=score(1.5, unseen=unseen, require="any"),
                    statistics=["show"],
                )
                model = compiled(functional(deep))
            evict = tf_ext.callbacks.Evict(steps=7, decay=0.5)
            losses = model.fit(
                data, epochs=2, callbacks=[evict], verbose=0, **options
            ).history["loss"]
            found.append((model, losses, evict.evicted))
        (alone, one, went), (spread, other, gone) = found
        self.assert_same_model(spread, alone)
        self.assertAllClose(other, one, 1e-6, 1e-6)
        self.assertEqual(gone, went)
        names = ["rows", "waiting", "admitted", "evicted"]
        here, there = (
            {name: model.tables[0].stats()[name] for name in names}
            for model in (alone, spread)
        )
        self.assertEqual(there, here)
        # Counters and rows come and go.
        signs = {
            s
            for b, _ in data
            for ids in b.values()
            for s in ids.numpy().ravel()
        }
        self.assertLess(here["rows"] + here["waiting"], len(signs))
        self.assertGreater(here["waiting"], 0)
        self.assertGreater(here["evicted"], 0)

    def test_capacity_is_divided_over_servers(self):
        with util.shared().strategy.scope():
            deep = table("sgd", eviction=tf_ext.eviction.Capacity(11))
        deep.push(range(100), np.ones([100, 4]), step=1, learning_rate=1.0)
        self.assertEqual(deep.evict(now=1), (100, 89))
        sizes = [shard["rows"] for shard in deep.shard_stats()]
        self.assertEqual(sizes, [6, 5])

    def test_statistics_on_servers(self):
        policy = tf_ext.eviction.Score(2)
        with util.shared().strategy.scope():
            deep = table("sgd", eviction=policy, statistics=["show"])
            model = compiled(functional(deep))
        model.fit(self.data(), verbose=0)
        before = deep.export_rows()[1]["show"]
        self.assertGreater(before.min(), 0)
        self.assertEqual(deep.decay_statistics(0.5), len(before))
        self.assertAllEqual(deep.export_rows()[1]["show"], before / 2)
        gone = np.sum(before < 4)
        self.assertEqual(deep.evict(), (len(before), gone))
        deep.import_rows([901, 902], {"show": np.ones([2, 1], np.float32)})
        self.assertEqual(deep.evict().evicted, 2)

    def test_layers_read_statistics_on_servers(self):
        models = []
        for strategy, steps in (
            (util.shared().strategy, {"max_inflight_steps": 1}),
            (tf.distribute.get_strategy(), {}),
        ):
            with strategy.scope():
                deep = table("adagrad", statistics=["show", "click"])
                dense = keras.optimizers.SGD(0.5, momentum=0.9)
                model = compiled(functional(deep, cvm=True), dense)
            model.fit(self.data(), epochs=2, verbose=0, **steps)
            models.append(model)
        self.assert_same_model(*models)
        found, expected = (m.predict(self.data(), verbose=0) for m in models)
        self.assertAllClose(found, expected, 1e-6, 1e-6)
        models[1].tables[0].decay_statistics(0.1)
        decayed = models[1].predict(self.data(), verbose=0)
        self.assertGreater(np.abs(decayed - expected).max(), 1e-3)


class SavingCallbacksTest(_Test):
    @parameterized.named_parameters(
        ("weights", "best.weights.h5", True), ("model", "best.keras", False)
    )
    def test_model_checkpoint_keeps_the_best_epoch(self, name, weights_only):
        path = self.path(name)
        copies = _Copies()
        best = keras.callbacks.ModelCheckpoint(
            path,
            monitor="watched",
            mode="min",
            save_best_only=True,
            save_weights_only=weights_only,
        )
        self.make().fit(
            self.data(),
            epochs=4,
            validation_data=self.data(32),
            callbacks=[copies, best],
            verbose=0,
        )
        if weights_only:
            loaded = self.alone()
            loaded.load_weights(path)
        else:
            loaded = keras.models.load_model(path)
        dense, rows = copies.found[1]
        self.assertAllClose(_dense(loaded), dense, 0, 0)
        self.assertEqual(contents(loaded.tables[0]), rows)
        self.assertNotEqual(rows, copies.found[3][1])

    def test_backup_and_restore_goes_on(self):
        data = self.data()
        whole = self.make()
        whole.fit(data, epochs=3, verbose=0, max_inflight_steps=1)

        directory = self.path("backup")
        options = {"epochs": 3, "verbose": 0, "max_inflight_steps": 1}

        def backup():
            return keras.callbacks.BackupAndRestore(directory)

        with self.assertRaises(KilledError):
            self.make().fit(data, callbacks=[backup(), Kill(16 + 4)], **options)
        resumed = self.make()
        epochs = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: epochs.append(epoch)
        )
        resumed.fit(data, callbacks=[backup(), note], **options)
        self.assertEqual(epochs, [1, 2])
        self.assert_same_model(resumed, whole)
        # It was deleted: the next fit starts anew.
        self.make().fit(data, callbacks=[backup(), note], **options)
        self.assertEqual(epochs, [1, 2, 0, 1, 2])

    def test_backups_inside_an_epoch(self):
        directory = self.path("backup")
        backup = keras.callbacks.BackupAndRestore(directory, save_freq=6)
        if not IS_KERAS_3:
            with self.assertRaisesRegex(
                ValueError, "`save_freq` .* must be 'epoch' .* Received: .*6"
            ):
                self.make().fit(self.data(), callbacks=[backup], verbose=0)
            return
        options = {"epochs": 3, "verbose": 0, "max_inflight_steps": 1}
        with self.assertRaises(KilledError):
            self.make().fit(
                self.data(), callbacks=[backup, Kill(16 + 10)], **options
            )
        resumed = self.make()
        backup = keras.callbacks.BackupAndRestore(directory)
        history = resumed.fit(self.data(), callbacks=[backup], **options)
        # Of 16 + 10 steps the last backup is that after 24, and Keras 3 begins
        # its epoch again.
        self.assertEqual(history.epoch, [1, 2])
        self.assertEqual(number(resumed.optimizer.iterations), 24 + 2 * 16)

    def test_early_stopping_restores_rows(self):
        model = self.make()
        copies = _Copies()
        stop = tf_ext.callbacks.EarlyStopping(
            monitor="watched", patience=2, restore_best_weights=True, mode="min"
        )
        history = model.fit(
            self.data(), epochs=6, callbacks=[copies, stop], verbose=0
        )
        self.assertLen(history.epoch, 4)
        dense, rows = copies.found[1]
        self.assertAllClose(_dense(model)[:4], dense[:4], 0, 0)
        self.assertEqual(contents(model.tables[0]), rows)
        self.assertNotEqual(rows, copies.found[3][1])


class OtherCallbacksTest(_Test):
    def test_rates_on_plateaus(self):
        rates, models = [], []
        for make, options in (
            (self.alone, {}),
            (self.make, {"max_inflight_steps": 1}),
        ):
            # The table has a rate of its own, which is to follow.
            model = make(rule=tf_ext.optimizers.SparseAdagrad(0.5))
            models.append(model)
            plateau = keras.callbacks.ReduceLROnPlateau(
                monitor="loss", factor=0.5, patience=1, min_delta=100.0
            )
            history = model.fit(
                self.data(), epochs=4, callbacks=[plateau], verbose=0, **options
            ).history
            self.assertLess(number(model.optimizer.learning_rate), 0.5)
            (name,) = {"lr", "learning_rate"} & set(history)
            rates.append(history[name])
        self.assertAllClose(rates[1], rates[0])
        self.assert_same_model(models[1], models[0])

    def test_logs_on_disk(self):
        directory = pathlib.Path(self.directory())
        log = directory / "log.csv"
        lines = []
        model = self.make()
        history = model.fit(
            self.data(),
            epochs=2,
            validation_data=self.data(64),
            callbacks=[
                keras.callbacks.TensorBoard(
                    str(directory), histogram_freq=1, update_freq=4
                ),
                keras.callbacks.CSVLogger(str(log)),
                keras.callbacks.TerminateOnNaN(),
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs: lines.append(dict(logs))
                ),
            ],
            verbose=0,
        ).history
        with log.open() as file:
            rows = list(csv.DictReader(file))
        self.assertLen(rows, 2)
        self.assertLen(lines, 2)
        for name, values in history.items():
            self.assertAllClose([float(row[name]) for row in rows], values)
            self.assertAllClose([line[name] for line in lines], values)
        for name, values in history.items():
            whose = "validation" if name.startswith("val_") else "train"
            tag = f"epoch_{name.removeprefix('val_')}"
            found = _scalars(directory / whose)[tag]
            self.assertAllClose(found, list(enumerate(values)), 1e-6)
        batches = _scalars(directory / "train")["batch_loss"]
        steps = [step for step, _ in batches]
        self.assertEqual(steps, sorted(steps))
        # Each fourth step, of those that the counter has when it is read: two
        # workers may have moved it past one, or not have moved it for a while.
        self.assertNotEmpty(steps)
        self.assertContainsSubset(steps, range(4, 2 * 16 + 1, 4))

    def test_no_number_ends_training(self):
        def spoil(features, labels):
            return features, labels * np.nan

        data = self.data()
        data = data.take(4).concatenate(data.skip(4).map(spoil))
        model = self.make()
        with self.assertRaises(tf.errors.InvalidArgumentError):
            # The optimizer refuses gradients that are no numbers.
            model.fit(data, verbose=0)

        def loss(labels, outputs):
            """Has numbers for gradients also where it is none itself."""
            return outputs + tf.stop_gradient(tf.reduce_sum(labels))

        with util.shared().strategy.scope():
            model = util.model()
            model.compile(tf_ext.optimizers.Optimizer("sgd"), loss)
        data = util.data(8000, 8)
        bad = data.take(4).concatenate(data.skip(4).map(spoil))
        history = model.fit(
            bad,
            epochs=3,
            callbacks=[keras.callbacks.TerminateOnNaN()],
            max_inflight_steps=2,
            verbose=0,
        )
        self.assertLen(history.epoch, 1)
        # Results come in order: one worker runs on while the other traces.
        self.assertLess(number(model.optimizer.iterations), 1000)


def _scalars(directory):
    """Scalars that TensorBoard finds: `{tag: [(step, value)]}`."""
    found = {}
    for path in sorted(directory.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                if number.dtype == np.float32 and number.ndim == 0:
                    found.setdefault(value.tag, []).append(
                        (event.step, float(number))
                    )
    return found


if __name__ == "__main__":
    tf.test.main()
