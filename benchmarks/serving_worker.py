"""Exports and serves on request, in a process of its own.

`serving_benchmarks.py` starts a new process for each measurement, so that none
affects the memory of the next. Serving does not import tf_ext, except for
exports that need its ops.
"""

import functools
import gc
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import remote
import tensorflow as tf
from batches import in_turn
from harness import Case, measure, resident_bytes

_COLUMNS = 26
_NAMESPACE = "id"
_FILL = 1 << 20
# Batches that take turns, so that none is in the processor's caches.
_BATCHES = 16
_EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


class _Worker:
    def start(self, threads):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)

    def make(self, rows, dim):
        """Makes a table of `rows` rows and a model on it."""
        import tf_ext
        from tf_ext._keras import keras

        self._table = tf_ext.SparseTable("bench", dim, initializer="normal")
        for first in range(0, rows, _FILL):
            ids = np.arange(first, min(first + _FILL, rows))
            signs = tf_ext.hashing.hash_category(ids, _NAMESPACE)
            self._table.pull(signs, training=True)
        columns = [
            tf_ext.feature_column.category_column(f"c{i}", namespace=_NAMESPACE)
            for i in range(_COLUMNS)
        ]
        inputs = {
            column.key: keras.Input((), dtype="string", name=column.key)
            for column in columns
        }
        layer = tf_ext.layers.EmbeddingFeatures(columns, self._table)
        hidden = layer(inputs)
        for units in (64, 32):
            hidden = keras.layers.Dense(units, activation="relu")(hidden)
        outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
        self._model = tf_ext.Model(inputs, outputs)

    def export(self, path, dtype):
        """Exports the model, with the table's rows in `dtype`, or the ops.

        Returns:
          Dict: `folder`, `bytes` on the disk, and `peak` bytes of memory that
          exporting took.
        """
        import tf_ext

        if dtype is None:
            write = functools.partial(self._model.export, path, verbose=False)
        else:
            write = functools.partial(
                tf_ext.serving.export, self._model, path, dtype=dtype
            )
        gc.collect()
        before = resident_bytes()
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM.
        folder = write() if dtype is not None else (write(), path)[1]
        peak = resident_bytes("VmHWM") - before
        files = pathlib.Path(folder).rglob("*")
        size = sum(file.stat().st_size for file in files if file.is_file())
        return {"folder": folder, "bytes": size, "peak": peak}

    def export_table(self, path, dtype):
        """Exports what looks rows up in `dtype`, alone."""
        from tf_ext.serving.row_sources import of_table
        from tf_ext.serving.stock_table import StockTable

        module = tf.Module()
        module.table = StockTable(self._table.rows.config, dtype, None)
        source = of_table(self._table)
        module.table.fill(source.chunks(), source.at_most)
        module.find = tf.function(
            module.table.lookup,
            input_signature=[tf.TensorSpec([None], tf.int64)],
        )
        tf.saved_model.save(module, path)

    def resident(self, path, rows):
        """Bytes that an export takes once it is loaded and has answered."""
        before = resident_bytes()
        loaded = _load(path)
        loaded.serve(_batch(np.random.default_rng(1), rows, 8))
        gc.collect()
        return resident_bytes() - before

    def latency(self, paths, rows, samples, repeats):
        """Measures requests to exports in turns, by `harness.measure`.

        Args:
          paths: `{case: folder}`; the first is the subject, "ops" needs those
            of tf_ext.
          rows: int, of the table.
          samples: int, of a request.
          repeats: int.
        """
        rng = np.random.default_rng(2)
        requests = [_batch(rng, rows, samples) for _ in range(_BATCHES)]
        loaded = {
            name: _load(path, ops=name == "ops") for name, path in paths.items()
        }
        cases = [
            Case(name, in_turn(model.serve, requests), samples)
            for name, model in loaded.items()
        ]
        return measure(cases, repeats)

    def lookups(self, paths, rows, dim, count, repeats):
        """Rows looked up, beside a plain gather: as `latency`."""
        import tf_ext

        rng = np.random.default_rng(3)
        numbers = [rng.integers(0, rows, count) for _ in range(_BATCHES)]
        matrix = tf.Variable(tf.random.normal([rows, dim]))
        gather = tf.function(lambda where: tf.gather(matrix, where))
        requests = [tf.constant(one) for one in numbers]
        cases = [Case("tf.gather", in_turn(gather, requests), count)]
        signs = [
            tf.constant(tf_ext.hashing.hash_category(one, _NAMESPACE))
            for one in numbers
        ]
        tables = {name: tf.saved_model.load(p) for name, p in paths.items()}
        cases += [
            Case(name, in_turn(table.find, signs), count)
            for name, table in tables.items()
        ]
        return measure(cases, repeats)

    def reload(self, path, rows, times):
        """Memory after each of several loads: a list of bytes.

        The previous version is unloaded after the next one has answered, as
        servers do.
        """
        request = _batch(np.random.default_rng(4), rows, 8)
        sizes, loaded = [], None
        for _ in range(times):
            new = _load(path)
            new.serve(request)
            loaded = new
            del new
            gc.collect()
            sizes.append(resident_bytes())
        del loaded
        return sizes

    def accuracy(self, directory, dtypes, examples, data):
        """How exports predict beside float32, on the Wide & Deep example.

        Returns:
          Dict of `{dtype: {"auc": float, "largest": float}}`: the AUC, and the
          largest change of a probability.
        """
        sys.path.insert(0, str(_EXAMPLES))
        import wide_deep

        import tf_ext

        arguments = [f"--examples={examples}"]
        if data is not None:
            arguments = [f"--data={data}", "--format=adult", "--epochs=3"]
        args = wide_deep.parse_arguments(arguments)
        stream = wide_deep.load_data(args)
        tf.keras.utils.set_random_seed(args.seed)
        tables = wide_deep.make_tables(args)
        model = wide_deep.make_model(stream, *tables, args.bucket_size)
        wide_deep.compile_model(model, args)
        model.fit(stream.train(), epochs=args.epochs, shuffle=False, verbose=0)
        labels, found = stream.test_labels(), {}
        for dtype in dtypes:
            folder = tf_ext.serving.export(
                model, os.path.join(directory, dtype), dtype=dtype
            )
            served = _load(folder)
            batches = [served.serve(batch)[:, 0] for batch, _ in stream.test()]
            found[dtype] = np.concatenate(batches)
        reference = found[dtypes[0]]
        return {
            dtype: {
                "auc": float(wide_deep.auc(labels, predictions)),
                "largest": float(np.abs(predictions - reference).max()),
            }
            for dtype, predictions in found.items()
        }


def _load(path, ops=False):
    if ops:
        import tf_ext

        tf_ext.ops.library()
    return tf.saved_model.load(path)


def _batch(rng, rows, samples):
    """Features of samples, ids of which all are trained."""
    ids = rng.integers(0, rows, [_COLUMNS, samples])
    return {
        f"c{i}": tf.constant([str(one) for one in column])
        for i, column in enumerate(ids)
    }


if __name__ == "__main__":
    remote.serve(_Worker())
