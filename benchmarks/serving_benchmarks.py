# SPDX-License-Identifier: Apache-2.0
"""Exports for serving: their size, memory, latency and accuracy.

It is also the program of the processes that export and serve, a new one for
each measurement, so that none affects the memory of the next. Those do not
import tf_ext to serve, except for exports that need its ops.
"""

import contextlib
import functools
import gc
import os
import pathlib
import sys
import tempfile

import numpy as np
import tensorflow as tf
from batches import in_turn
from harness import (
    Case,
    Worker,
    heading,
    measure,
    report,
    resident_bytes,
    serve,
    start,
    write_json,
)

_DTYPES = ("float32", "float16", "int8")
_OPS = "ops"
_COLUMNS = 26
_NAMESPACE = "id"
_FILL = 1 << 20
# Requests of 200 samples x 26 ids, and what a busy server looks up.
_LOOKUPS = (26, 5_200, 100_000)
# Batches that take turns, so that none is in the processor's caches.
_BATCHES = 16
_TRAINED = 300_000
# Of what `--data` names, the one that has held-out files.
_ADULT = "adult"
_EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def serving(args):
    """All measurements; each in processes of its own."""
    settings = {"threads": args.threads, "rows": args.rows, "dim": args.dim}
    with tempfile.TemporaryDirectory(dir=args.output) as directory:
        sizes = _export(args, directory)
        folders = {name: one["folder"] for name, one in sizes.items()}
        for name, folder in folders.items():
            if name != _OPS:
                with _worker(args) as worker:
                    sizes[name]["resident"] = worker.call(
                        "resident", path=folder, rows=args.rows
                    )
        _report_sizes(sizes, settings, args)
        _lookups(args, directory, settings)
        # float32 is the subject: what the ops take is over its time.
        for samples in (200, 1):
            with _worker(args) as worker:
                results = worker.call(
                    "latency",
                    paths=folders,
                    rows=args.rows,
                    samples=samples,
                    repeats=args.repeats,
                )
            about = {**settings, "samples": samples, "unit": "samples"}
            report("serving latency", results, about, args.json)
        _accuracy(args, directory, settings)


@contextlib.contextmanager
def _worker(args):
    """A new process, ready for calls."""
    environment = dict(os.environ)
    # Its modules are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    program = pathlib.Path(__file__)
    with start(
        "serving", sys.executable, program, args.threads, environment
    ) as worker:
        worker.ready()
        yield worker


def _export(args, directory):
    """Exports in all types and with the ops: `{name: dict}` of what it took."""
    sizes = {}
    # Anew for each: what an export has left would be there for the next one.
    for name in (*_DTYPES, _OPS):
        dtype = None if name == _OPS else name
        with _worker(args) as worker:
            worker.call("make", rows=args.rows, dim=args.dim)
            path = os.path.join(directory, name)
            sizes[name] = worker.call("export", path=path, dtype=dtype)
            if name != _OPS:
                worker.call(
                    "export_table", path=_table(directory, name), dtype=dtype
                )
    return sizes


def _table(directory, name):
    return os.path.join(directory, f"{name}_table")


def _report_sizes(sizes, settings, args):
    raw = args.rows * (8 + 4 * args.dim)
    weights = args.rows * 4 * args.dim
    print(heading("serving sizes", settings))
    print(
        f"  {'case':12} {'disk, of raw':>14} {'resident, of raw':>18} "
        f"{'peak of export, of weights':>28}"
    )
    lines = []
    for case, size in sizes.items():
        line = {
            "disk_ratio": size["bytes"] / raw,
            "resident_ratio": size.get("resident", float("nan")) / raw,
            "peak_ratio": size["peak"] / weights,
        }
        print(
            f"  {case:12} {line['disk_ratio']:14.3f} "
            f"{line['resident_ratio']:18.2f} {line['peak_ratio']:28.2f}"
        )
        about = {"benchmark": "serving sizes", **settings, "case": case}
        lines.append({**about, **size, **line})
    write_json(lines, args.json)


def _lookups(args, directory, settings):
    for count in _LOOKUPS:
        with _worker(args) as worker:
            results = worker.call(
                "lookups",
                paths={name: _table(directory, name) for name in _DTYPES},
                rows=args.rows,
                dim=args.dim,
                count=count,
                repeats=args.repeats,
            )
        about = {**settings, "ids": count, "unit": "ids"}
        report("serving lookups", results, about, args.json)


def _accuracy(args, directory, settings):
    data = {"generated": None}
    if args.data and pathlib.Path(args.data, _ADULT).is_dir():
        data[_ADULT] = os.path.join(args.data, _ADULT)
    dtypes = ["float32", "float16", "bfloat16", "int8"]
    lines = []
    print(heading("serving accuracy", {"threads": settings["threads"]}))
    for name, path in data.items():
        with _worker(args) as worker:
            found = worker.call(
                "accuracy",
                directory=os.path.join(directory, name),
                dtypes=dtypes,
                examples=min(_TRAINED, args.rows),
                data=path,
            )
        for dtype, line in found.items():
            change = line["auc"] - found["float32"]["auc"]
            print(
                f"  {name:10} {dtype:10} AUC {line['auc']:.6f} ({change:+.1e}),"
                f" largest change of a probability {line['largest']:.1e}"
            )
            about = {"benchmark": "serving accuracy", "case": dtype}
            lines.append({**about, "data": name, **line, "auc_change": change})
    write_json(lines, args.json)


class _Worker(Worker):
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
        from tf_ext.serving.variable_files import fill_variables

        module = tf.Module()
        module.table = StockTable(self._table.rows.config, dtype, None)
        source = of_table(self._table)
        rows = pathlib.Path(f"{path}_rows")
        files, _ = module.table.fill(source.chunks(), source.at_most, rows)
        module.find = tf.function(
            module.table.lookup,
            input_signature=[tf.TensorSpec([None], tf.int64)],
        )
        tf.saved_model.save(module, path)
        fill_variables(
            pathlib.Path(path),
            {("table", key): file for key, file in files.items()},
        )

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
    serve(_Worker())
