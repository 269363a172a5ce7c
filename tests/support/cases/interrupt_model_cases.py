# SPDX-License-Identifier: Apache-2.0
"""What a program does with models that can be interrupted."""

import gc
import os
import shutil
import signal

import numpy as np
import tensorflow as tf
from models import small_models as small
from models.sharded_tables import bytes_of_rows

import tf_ext
from cases.interrupt_cases import Case
from tf_ext import serving
from tf_ext.recovery import files as point_files
from tf_ext.snapshot.files import read_manifest


class _Models(Case):
    """A model with a table, and its data."""

    rule = "adagrad"

    def prepare(self):
        features, labels = small.batch(np.random.default_rng(3), 96)
        self.data = tf.data.Dataset.from_tensor_slices((features, labels))
        self.data = self.data.batch(16)
        self.model = small.compiled(small.functional(small.table(self.rule)))
        self.model.fit(self.data, verbose=0)

    def state(self):
        """All that training changes, apart from counts of steps."""
        model = self.model
        dense = [
            np.asarray(variable).tolist()
            for layer in model.layers
            for variable in layer.weights
            if tuple(variable.shape) != (1, 4)
        ]
        return dense, bytes_of_rows(model.tables[0])


class Fit(_Models):
    """Training that writes recovery points, and may be told to end."""

    incremental = True

    def begin(self):
        self.callback = tf_ext.callbacks.TableSnapshot(
            self.path("points"), steps=2, incremental=self.incremental
        )
        shutil.rmtree(self.path("points"), ignore_errors=True)
        self.model.tables[0].end_incremental()

    def operate(self):
        self.model.fit(self.data, verbose=0, callbacks=[self.callback])

    def check(self, twice):
        if twice:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        self.check_points()
        self.operate()
        assert self.check_points() > 0
        gc.collect()

    def check_points(self):
        points = point_files.list_points(self.path("points"))
        for point in points:
            saved = point_files.read_point(point)
            point_files.read_arrays(saved, point)
            path = point_files.table_path(point, 0)
            assert read_manifest(path).id == saved.tables[0][1]
            small.table(self.rule).load(path)
        return len(points)


class FitOnSigterm(Fit):
    def begin(self):
        self.callback = tf_ext.callbacks.TableSnapshot(
            self.path("points"), steps=2, on_sigterm=True
        )
        shutil.rmtree(self.path("points"), ignore_errors=True)


class Resume(_Models):
    """A `fit` that finds nothing to do after its recovery point."""

    def prepare(self):
        super().prepare()
        self.model.fit(self.data, verbose=0, callbacks=[self._callback()])
        self.wanted = self.state()

    def _callback(self):
        return tf_ext.callbacks.TableSnapshot(self.path("points"))

    def begin(self):
        self.callback = self._callback()
        self.model.tables[0].clear()
        for layer in self.model.layers:
            for variable in layer.weights:
                if tuple(variable.shape) != (1, 4):
                    variable.assign(tf.zeros_like(variable))

    def operate(self):
        self.model.fit(self.data, verbose=0, callbacks=[self.callback])

    def check(self, twice):
        if self.callback.can_resume():  # It has not been done.
            self.operate()
        assert self.state() == self.wanted, "the model is not the point's"


class Weights(_Models):
    """A file of weights that is replaced."""

    def prepare(self):
        super().prepare()
        self.file = self.path("model.weights.h5")
        self.model.save_weights(self.file)
        self.wanted = self.state()

    def operate(self):
        self.model.save_weights(self.file)

    def check(self, twice):
        self.model.load_weights(self.file)
        assert self.state() == self.wanted
        self.operate()
        if not twice:
            assert os.listdir(self.folder) == ["model.weights.h5"]


class LoadWeights(Weights):
    def begin(self):
        self.model.tables[0].clear()

    def operate(self):
        self.model.load_weights(self.file)

    def check(self, twice):
        self.model.tables[0].clear()
        self.operate()
        assert self.state() == self.wanted


class Export(_Models):
    def operate(self):
        serving.export(self.model, self.path("versions"))

    def check(self, twice):
        self.operate()
        versions = serving.versions(self.path("versions"))
        assert versions
        for version in versions:
            path = self.path(f"versions/{version}")
            assert not serving.damaged_files(path)
            [table] = serving.read_manifest(path)["tables"]
            assert table["rows"] == self.model.tables[0].size()
        if not twice:
            names = sorted(map(str, versions))
            found = sorted(os.listdir(self.path("versions")))
            assert found == names, found
        shutil.rmtree(self.path("versions"))
