# SPDX-License-Identifier: Apache-2.0
"""Training with TableSnapshot that is killed and goes on in a new process."""

import contextlib
import json
import logging
import math
import os
import pathlib
import shutil
import tempfile
import unittest.mock

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator, number
from programs import snapshot_restart_program as program
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files
from tf_ext.recovery import points as recovery_points
from tf_ext.snapshot import SnapshotConflictError, files, open_snapshot
from tf_ext.snapshot.changes import deltas_since
from tf_ext.snapshot.manifest import DamagedSnapshotError
from tf_ext.tables.saving import snapshot_save

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "RestartTest::test_*",
        "TableSnapshotTest::test_a_damaged_point_is_passed_over",
        "TableSnapshotTest::test_all_rows_that_could_not_be_written",
        "TableSnapshotTest::test_a_point_of_the_last_step_comes_after_the_epoch",
        "TableSnapshotTest::test_the_end_of_fit_is_a_point[12]",
        "TwoTrainingsTest::test_*",
    ),
]

_CASES = tuple(program.cases())
# Where data end unexpectedly, Keras counts one more step now and then.
_COMPARED = {name for name in _CASES if "unknown_length" not in name}


class RestartTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = tempfile.TemporaryDirectory(prefix="tf_ext_restart_")
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = pathlib.Path(temporary.name)
        for life in ("whole", "first", "second"):
            printed = processes.run(
                "snapshot_restart_program.py", life, cls.directory
            )
        cls.heard = {
            line.partition(" ")[0]: line.partition(" ")[2]
            for line in printed.splitlines()
            if line.partition(" ")[0] in _CASES
        }

    @parameterized.named_parameters(
        *((name, name) for name in sorted(_COMPARED | {program.ONLY_KERAS_3}))
    )
    def test_equals_training_without_a_break(self, case):
        if case not in _COMPARED:
            self.skipTest("tf_keras does not accumulate gradients")
        whole, second = (
            dict(np.load(self.directory / f"{name}.npz"))
            for name in (f"whole_{program.whole_of(case)}", f"second_{case}")
        )
        self.assertSameElements(whole, second)
        for name, values in whole.items():
            self.assertEqual(values.tobytes(), second[name].tobytes(), name)

    @pytest.mark.slow
    def test_callbacks_hear_of_one_training(self):
        last = "2 " + " ".join(f"2.{step}" for step in range(program.STEPS))
        self.assertEqual(
            self.heard["inside_an_epoch"],
            f"begin 1 1.3 1.4 1.5 1.6 {last} end 1 2",
        )
        first = "1 " + " ".join(f"1.{step}" for step in range(program.STEPS))
        for case in (
            "at_the_end_of_an_epoch",
            "at_the_last_step_of_an_epoch",
            "unknown_length_at_the_last_step",
        ):
            self.assertEqual(self.heard[case], f"begin {first} {last} end 1 2")

    def test_old_points_are_removed(self):
        points = os.listdir(self.directory / "inside_an_epoch")
        self.assertLen(points, 2)
        # Those of incremental ones stay which others continue.
        points = os.listdir(self.directory / "incremental")
        self.assertBetween(len(points), 2, 12)


class TableSnapshotTest(TestCase):
    def _train(self, snapshot, epochs=3, model=None):
        features, labels = small.batch(generator(self))
        model = model or small.compiled(small.functional(small.table()))
        model.fit(
            features,
            labels,
            batch_size=16,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[snapshot],
        )
        return model

    def test_a_damaged_point_is_passed_over(self):
        directory = self.directory()
        model = self._train(tf_ext.callbacks.TableSnapshot(directory))
        wanted = contents(model.tables[0])
        points = point_files.list_points(directory)
        self.assertLen(points, 3)
        for place in ("point.json", "table-000/manifest.json"):
            with open(os.path.join(points.pop(), place), "r+b") as file:
                file.seek(50)
                file.write(b"#")
        with self.assertLogs("tf_ext", "WARNING") as logs:
            model = self._train(tf_ext.callbacks.TableSnapshot(directory))
        self.assertLen(logs.output, 3)
        self.assertRegex(logs.output[0], r"point.json is damaged")
        self.assertEqual(contents(model.tables[0]), wanted)
        # They are replaced, and no leftover stays.
        self.assertLen(point_files.list_points(directory), 3)
        for point in point_files.list_points(directory):
            with open(os.path.join(point, "point.json"), "r+b") as file:
                file.truncate(100)
        with self.assertRaisesRegex(DamagedSnapshotError, "is damaged"):
            self._train(tf_ext.callbacks.TableSnapshot(directory))

    def test_points_keep_their_distance_over_a_restart(self):
        directory = self.directory()
        model = small.compiled(small.functional(small.table()))
        options = {"steps": 3, "keep": 9}

        class Killed(tf_ext.callbacks.TableSnapshot):
            def on_train_batch_end(self, batch, logs=None):
                super().on_train_batch_end(batch, logs)
                if number(self.model.optimizer.iterations) == 7:
                    raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self._train(Killed(directory, **options), model=model)
        self._train(tf_ext.callbacks.TableSnapshot(directory, **options))
        self.assertEqual(
            point_files.list_points(directory),
            [point_files.path_of(directory, n) for n in (3, 6, 9, 12)],
        )

    @parameterized.parameters(
        {"steps": 9}, {"steps": 12}, {"seconds": 1e9}, {"epoch_end": False}
    )
    def test_the_end_of_fit_is_a_point(self, **options):
        directory = self.directory()
        steps = 3 * 4
        written = []

        class Written(tf_ext.callbacks.TableSnapshot):
            def _save_of(self, index, table, path):
                written.append(os.path.dirname(path))
                return super()._save_of(index, table, path)

        snapshot = Written(directory, **options)
        model = self._train(snapshot)
        last = point_files.path_of(directory, steps)
        self.assertEqual(written.count(last), 1)
        self.assertEqual(point_files.list_points(directory)[-1], last)
        # Training further continues from it, in this object and in others.
        self._train(snapshot, 1, model)
        other = small.compiled(small.functional(small.table()))
        self._train(tf_ext.callbacks.TableSnapshot(directory), 1, other)
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))
        self.assertEqual(number(other.optimizer.iterations), 4 * 4)

    def test_fit_tells_where_it_continues(self):
        directory = self.directory()

        def logs_of(epochs, callback=None, **options):
            snapshot = tf_ext.callbacks.TableSnapshot(directory, **options)
            features, labels = small.batch(generator(self))
            model = small.compiled(small.functional(small.table()))
            with self.assertLogs("tf_ext", "WARNING") as logs:
                # There may be nothing to log.
                logging.getLogger("tf_ext").warning("first")
                with contextlib.suppress(KeyboardInterrupt):
                    history = model.fit(
                        features,
                        labels,
                        batch_size=16,
                        epochs=epochs,
                        verbose=0,
                        shuffle=False,
                        callbacks=[snapshot, *filter(None, [callback])],
                    )
                    trained.append(len(history.epoch))
            return [record.getMessage() for record in logs.records[1:]]

        def kill(batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

        trained = []
        killer = keras.callbacks.LambdaCallback(on_train_batch_end=kill)
        self.assertEmpty(logs_of(3, killer, steps=2))
        path = point_files.path_of(directory, 2)
        self.assertEqual(
            logs_of(1),
            [
                f"Training continues from the recovery point {path}: epoch 1 "
                "of 1, after 2 of its steps."
            ],
        )
        path = point_files.path_of(directory, 4)
        self.assertEqual(
            logs_of(3),
            [
                f"Training continues from the recovery point {path}: epoch 2 "
                "of 3, after 0 of its steps."
            ],
        )
        path = point_files.path_of(directory, 12)
        self.assertEqual(
            logs_of(3),
            [
                f"There is nothing left to train: the recovery point {path} is "
                "at the end of epoch 3, and `epochs` of fit is 3. To train "
                "further, give more epochs; to start again, give TableSnapshot "
                "another directory."
            ],
        )
        self.assertEqual(trained, [1, 2, 0])

    def test_damaged_variables(self):
        directory = self.directory()
        model = self._train(tf_ext.callbacks.TableSnapshot(directory), 1)
        [point] = point_files.list_points(directory)
        [name] = [n for n in os.listdir(point) if n.startswith("variables")]
        with open(os.path.join(point, name), "r+b") as file:
            file.write(b"#")
        with self.assertRaisesRegex(
            DamagedSnapshotError, f"{name} is damaged: the CRC32C"
        ):
            self._train(tf_ext.callbacks.TableSnapshot(directory))
        self.assertGreater(model.tables[0].size(), 0)

    def test_points_of_incremental_ones_are_deltas_but_the_first(self):
        directory = self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(directory, incremental=True)
        self._train(snapshot, 3)
        kinds = [
            open_snapshot(os.path.join(point, "table-000")).manifest.kind
            for point in sorted(point_files.list_points(directory))
        ]
        self.assertEqual(kinds, ["full", "delta", "delta"])

    def test_an_unfinished_point_is_no_point(self):
        directory = self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(directory, incremental=True)
        model = self._train(snapshot, 2)
        wanted = contents(model.tables[0])
        last = point_files.list_points(directory)[-1]
        unfinished = point_files.path_of(directory, 9999)
        os.mkdir(unfinished)
        model = small.compiled(small.functional(small.table()))
        snapshot = tf_ext.callbacks.TableSnapshot(directory, incremental=True)
        model.optimizer.build(model.trainable_variables)
        self.assertTrue(snapshot.can_resume())
        self.assertEqual(snapshot.resume(model, 9).path, last)
        self.assertEqual(contents(model.tables[0]), wanted)
        self._train(snapshot, 3, model)
        self.assertFalse(os.path.exists(unfinished))

    def test_another_model_is_refused(self):
        directory = self.directory()
        self._train(tf_ext.callbacks.TableSnapshot(directory), 1)
        model = small.functional(small.table())
        model = small.compiled(model, "adam")
        with self.assertRaisesRegex(
            ValueError, "cannot be restored from .* variable optimizer/"
        ):
            self._train(tf_ext.callbacks.TableSnapshot(directory), 2, model)
        other = small.compiled(small.functional(small.table("adam")))
        with self.assertRaisesRegex(ValueError, "its `optimizer` is 'adam'"):
            self._train(tf_ext.callbacks.TableSnapshot(directory), 2, other)

    def test_a_subclassed_model_is_built(self):
        directory = self.directory()
        models = [
            small.compiled(small.Subclassed(small.table())) for _ in range(2)
        ]
        for model in models:
            snapshot = tf_ext.callbacks.TableSnapshot(directory)
            self._train(snapshot, 1, model)
        self.assertEqual(
            *(contents(model.tables[0]) for model in models),
        )

    def test_seconds(self):
        directory = self.directory()
        self._train(tf_ext.callbacks.TableSnapshot(directory, seconds=1e-9), 1)
        # The first and the last one: others may have been under way.
        found = point_files.list_points(directory)
        self.assertGreaterEqual(len(found), 2)
        self.assertEqual(found[-1], point_files.path_of(directory, 4))
        directory = self.directory()
        self._train(tf_ext.callbacks.TableSnapshot(directory, seconds=1e9), 1)
        self.assertLen(point_files.list_points(directory), 1)

    @parameterized.parameters(
        *(
            (
                {"steps": v},
                "`steps` of TableSnapshot must be a positive integer"
                f" or None. Received: steps={v!r}",
            )
            for v in (0, 2.0, True)
        ),
        *(
            (
                {"seconds": v},
                "`seconds` of TableSnapshot must be a positive fin"
                f"ite number or None. Received: seconds={v!r}",
            )
            for v in ("1", math.nan, math.inf, -1.0, True)
        ),
        *(
            (
                {"keep": v},
                "`keep` of TableSnapshot must be a positive integer. "
                f"Received: keep={v!r}",
            )
            for v in (0, None, 1.5, True)
        ),
        *(
            (
                {"max_bytes_per_second": v},
                "`max_bytes_per_second` of TableSnapshot must be a pos"
                f"itive integer or None. Received: max_bytes_per_second={v!r}",
            )
            for v in ("x", 0, 1.5, True, 2**63)
        ),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaises(ValueError) as raised:
            tf_ext.callbacks.TableSnapshot("/nowhere", **arguments)
        self.assertEqual(str(raised.exception), f"Argument {message}")

    def _points_after_steps(self, batches, **options):
        """Trains for an epoch: the directory, `{step: points after it}`."""
        directory = self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(directory, **options)
        seen = {}

        def look(batch, logs=None):
            snapshot._go_on(wait=True)
            seen[batch + 1] = [
                int(os.path.basename(path).removeprefix("point-"))
                for path in point_files.list_points(directory)
            ]

        features, labels = small.batch(generator(self), 4 * batches)
        model = small.compiled(small.functional(small.table()))
        model.fit(
            features,
            labels,
            batch_size=4,
            verbose=0,
            callbacks=[
                snapshot,
                keras.callbacks.LambdaCallback(on_train_batch_end=look),
            ],
        )
        return directory, seen

    def test_beside_each_11th_point_are_all_rows_and_bases_stay(self):
        directory, seen = self._points_after_steps(
            15, steps=1, keep=2, incremental=True
        )
        for step in range(1, 15):
            # The one before the last continues all others.
            self.assertEqual(seen[step], list(range(1, step)))
        self.assertEqual(seen[15], [13, 14])
        last = point_files.list_points(directory)[-1]
        chain = open_snapshot(point_files.table_path(last, 0)).chain
        self.assertEqual(
            [(manifest.step, manifest.kind) for _, manifest in chain],
            [(12, "full"), (13, "delta"), (14, "delta"), (15, "delta")],
        )
        # What is left of it is no point.
        base = point_files.path_of(directory, 12)
        self.assertEqual(os.path.dirname(os.path.dirname(chain[0][0])), base)
        self.assertNotIn("point.json", os.listdir(base))
        self.assertCountEqual(
            os.listdir(directory),
            map(os.path.basename, (base, *point_files.list_points(directory))),
        )

    def test_bases_stay_on_other_file_systems(self):
        directory = f"ram://{self.directory()}"
        model = small.compiled(small.functional(small.table()))
        snapshot = tf_ext.callbacks.TableSnapshot(
            directory, steps=1, keep=1, incremental=True
        )
        self._train(snapshot, 2, model)
        other = small.compiled(small.functional(small.table()))
        self._train(tf_ext.callbacks.TableSnapshot(directory), 2, other)
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))
        [last] = point_files.list_points(directory)[-1:]
        self.assertLen(files.read_chain(point_files.table_path(last, 0)), 8)

    def test_all_rows_that_could_not_be_written(self):
        write, failures = snapshot_save.Save.write_own_rows, []

        def fail(save):
            if save._path.endswith("12/table-000/base"):
                failures.append(save._path)
                raise OSError(28, "No space left on device")
            write(save)

        directory = self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(
            directory, steps=1, keep=99, incremental=True
        )
        model = small.compiled(small.functional(small.table()))
        with unittest.mock.patch.object(
            snapshot_save.Save, "write_own_rows", fail
        ):
            with self.assertRaises(OSError):
                self._train(snapshot, 4, model)
        self.assertLen(failures, 1)
        last = point_files.path_of(directory, 12)
        self.assertEqual(point_files.list_points(directory)[-1], last)
        self.assertEqual(
            model.tables[0].rows.chain.links[-1][0],
            point_files.table_path(last, 0),
        )
        killed = f"{directory}-killed"
        self.addCleanup(shutil.rmtree, killed)
        shutil.copytree(directory, killed)
        # This process and another one go on with the chain.
        self._train(snapshot, 4, model)
        other = tf_ext.callbacks.TableSnapshot(
            killed, steps=1, keep=99, incremental=True
        )
        self._train(other, 4)
        for root, since_eleven in ((directory, 14), (killed, 3)):
            links = files.read_chain(
                point_files.table_path(point_files.list_points(root)[-1], 0)
            )
            self.assertEqual([m.kind for _, m in links][:2], ["full", "delta"])
            before = open_snapshot(
                os.path.join(root, "point-0000000011", "table-000")
            )
            deltas = deltas_since(links[:2], before.manifest.id)
            self.assertLen(deltas, since_eleven)

    def test_a_point_of_the_last_step_comes_after_the_epoch(self):
        directory, seen = self._points_after_steps(4, steps=2)
        self.assertEqual(seen, {1: [], 2: [], 3: [2], 4: [2]})
        [_, last] = point_files.list_points(directory)
        with open(os.path.join(last, "point.json")) as file:
            point = json.load(file)
        self.assertEqual(
            [point[k] for k in ("step", "epoch", "step_in_epoch")], [4, 1, 0]
        )

    def test_another_fit_is_refused(self):
        model = small.compiled(small.functional(small.table(), keras.Model))
        with self.assertRaisesRegex(ValueError, "must be a tf_ext"):
            self._train(
                tf_ext.callbacks.TableSnapshot(self.directory()), 1, model
            )

    def test_evaluate_and_predict_are_refused(self):
        directory = self.directory()
        model = small.compiled(small.functional(small.table()))
        features, labels = small.batch(generator(self))
        snapshot = tf_ext.callbacks.TableSnapshot(directory)
        options = {"callbacks": [snapshot], "verbose": 0}
        # Validation is a part of `fit`.
        model.fit(features, labels, validation_split=0.5, **options)
        wanted = rf"warm_start\(model, '{directory}'\) before `"
        with self.assertRaisesRegex(ValueError, wanted + "evaluate"):
            model.evaluate(features, labels, **options)
        with self.assertRaisesRegex(ValueError, wanted + "predict"):
            model.predict(features, **options)
        with (
            unittest.mock.patch.object(
                snapshot, "on_epoch_end", side_effect=OSError
            ),
            self.assertRaises(OSError),
        ):
            model.fit(features, labels, **options)
        with self.assertRaisesRegex(ValueError, wanted + "evaluate"):
            model.evaluate(features, labels, **options)

    def test_two_are_refused(self):
        directory = self.directory()
        model = small.compiled(small.functional(small.table()))
        features, labels = small.batch(generator(self))
        with self.assertRaisesRegex(ValueError, "at most one TableSnap"):
            model.fit(
                features,
                labels,
                callbacks=[
                    tf_ext.callbacks.TableSnapshot(directory),
                    tf_ext.callbacks.TableSnapshot(directory),
                ],
            )


class TwoTrainingsTest(TestCase):
    def _fit(self, directory, epochs, meanwhile=None, **options):
        """Trains; `meanwhile` is called after the second epoch."""
        features, labels = small.batch(generator(self))
        model = small.compiled(small.functional(small.table()))
        snapshot = tf_ext.callbacks.TableSnapshot(
            directory, epoch_end=True, **options
        )
        callbacks = [snapshot]
        if meanwhile is not None:
            callbacks.append(
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, _: epoch == 1 and meanwhile()
                )
            )
        model.fit(
            features,
            labels,
            batch_size=16,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        return model

    @parameterized.parameters(False, True)
    def test_the_training_that_began_last_counts(self, incremental):
        directory = self.directory()
        later = []
        options = {"incremental": incremental, "keep": 1}

        def restart():
            later.append(self._fit(directory, 4, **options))

        with self.assertRaisesRegex(
            SnapshotConflictError,
            f"^Writing recovery points in {directory} was aborted: another",
        ):
            self._fit(directory, 6, restart, **options)
        [*_, last] = point_files.list_points(directory)
        self.assertEqual(last, point_files.path_of(directory, 16))
        # Nothing is left but points.
        self.assertEmpty(
            [n for n in os.listdir(directory) if not n.startswith("point-")]
        )
        model = self._fit(directory, 4, **options)
        self.assertEqual(
            contents(model.tables[0]), contents(later[0].tables[0])
        )

    def test_points_that_a_restart_reads_are_not_removed(self):
        directory = self.directory()
        self._fit(directory, 2, keep=1)
        old = small.compiled(small.functional(small.table()))
        claim = recovery_points.claim(directory, old)
        [before] = point_files.list_points(directory)
        read = recovery_points.read

        def late_prune(*args):
            newer = point_files.path_of(directory, 99)
            os.mkdir(newer)
            with open(os.path.join(newer, "point.json"), "wb"):
                pass
            recovery_points.prune(directory, 1, claim)
            self.assertLen(point_files.list_points(directory), 2)
            return read(*args)

        with unittest.mock.patch.object(
            recovery_points, "read", side_effect=late_prune
        ):
            model = small.compiled(small.functional(small.table()))
            model.optimizer.build(model.trainable_variables)
            snapshot = tf_ext.callbacks.TableSnapshot(directory)
            self.assertTrue(snapshot.can_resume())
            self.assertEqual(snapshot.resume(model, 9).path, before)
