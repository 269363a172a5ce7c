# SPDX-License-Identifier: Apache-2.0
"""Datasets of the records of files."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import posixpath
import typing
from collections.abc import Callable, Generator, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import check_count, is_int, refuse
from tf_ext.data.arrow import require_pyarrow
from tf_ext.data.csv_files import CsvFiles
from tf_ext.data.dialect import Csv
from tf_ext.data.epochs import Epoch, mark
from tf_ext.data.errors import ReadErrors, ReadingError, check_max_errors
from tf_ext.data.field import is_list
from tf_ext.data.json_files import JsonFiles
from tf_ext.data.parquet_files import ParquetFiles
from tf_ext.data.parts import Layout, Parsed, Part, concat
from tf_ext.data.record_files import RecordFiles
from tf_ext.data.schema import Schema
from tf_ext.ops.exchange import exchange_ops

_NAME = "read"
_DIALECTS = {"csv": Csv(), "tsv": Csv("\t", quotes=False)}
_FORMATS = (*_DIALECTS, "jsonl", "tfrecord", "parquet")
Files: typing.TypeAlias = str | os.PathLike[str]
Shard: typing.TypeAlias = tuple[int, int] | tf.distribute.InputContext


def read(
    files: Files | Iterable[Files],
    schema: Schema,
    format: str | Csv = "csv",
    *,
    batch_size: int,
    header: bool = False,
    shuffle: int | None = None,
    seed: int = 0,
    repeat: bool = False,
    shard: Shard | None = None,
    max_errors: float = 0.01,
    errors: ReadErrors | None = None,
    threads: int = 2,
) -> tf.data.Dataset:
    r"""Reads files of records into batches.

    Only malformed records are left out. They are counted by file and
    reason, and the first few are logged with file and line, record or row; more
    than `max_errors` end the reading with an error. docs/data.md lists what is
    malformed in each format.

    With `shuffle`, each epoch of `tf_ext.Model.fit` has another order, which
    depends only on `seed` and on the number of the epoch, so that `fit` with
    `tf_ext.callbacks.TableSnapshot` continues a killed training with the sample
    after the last one. Elsewhere the dataset has the order of the first epoch
    each time it is read. The records are parsed in this process: give
    `fit` the dataset, or under MultiWorkerMirroredStrategy a function from the
    `tf.distribute.InputContext`, as `shard`, to the dataset.

    Args:
      files: path or pattern of `tf.io.gfile.glob`, or several, on any file
        system of TensorFlow. All but Parquet may be compressed by gzip.
      schema: tf_ext.data.Schema.
      format: "csv", with quotes as in RFC 4180; "tsv", separated by tabs,
        without quotes; a tf_ext.data.Csv, with other delimiters or encodings;
        "jsonl", JSON lines; "tfrecord", of tf.train.Example; or "parquet". In
        files of text, a line is a record, or several with a field in quotes.
      batch_size: int, the records of a batch; the last one of a pass over the
        files may have fewer.
      header: bool, whether each file of CSV or TSV begins with a line of names.
        Fields are then found by name. Of repeated names, the second is `x.1`
        and the third `x.2`, as in pandas.
      shuffle: int, how many records are shuffled together; files are shuffled,
        too. None: in order.
      seed: int, of the order.
      repeat: bool, whether the dataset repeats the files endlessly; with
        `shuffle`, each pass over them has another order.
      shard: `(index, count)` or a tf.distribute.InputContext: only each
        `count`-th file, from `index`; there must be at least `count` files.
      max_errors: float, the greatest share of malformed records.
      errors: tf_ext.data.ReadErrors that counts them.
      threads: int, how many blocks of a file are parsed at the same time.

    Returns:
      tf.data.Dataset of batches: features, `(features, labels)` or
      `(features, labels, sample_weights)`, as the schema says. Features are a
      dict of tensors `[batch_size]`, and of ragged ones `[batch_size, None]`
      for bags.

    Raises:
      ValueError: an argument is not as above.
      FileNotFoundError: there are no files.
      ImportError: without pyarrow.

    Example:
      >>> import pathlib, tempfile
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "clicks.tsv"
      >>> _ = file.write_text("1\tann\tred|new\t2.5\n0\tbob\t\t\n")
      >>> schema = tf_ext.data.Schema(
      ...     [tf_ext.data.Field("click", "float32"),
      ...      tf_ext.data.Field("user"),
      ...      tf_ext.data.Field("tags", separator="|"),
      ...      tf_ext.data.Field("price", "float32", default=-1.0)],
      ...     label="click")
      >>> data = tf_ext.data.read(file, schema, "tsv", batch_size=2)
      >>> for features, labels in data:
      ...     print(features["tags"].to_list(), features["price"].numpy(),
      ...         labels.numpy())
      [[b'red', b'new'], []] [ 2.5 -1. ] [1. 0.]
    """
    if not isinstance(schema, Schema):
        refuse(_NAME, "schema", "a tf_ext.data.Schema", schema)
    if not isinstance(format, Csv) and format not in _FORMATS:
        allowed = f"one of {', '.join(_FORMATS)}, or a tf_ext.data.Csv"
        refuse(_NAME, "format", allowed, format)
    check_count(_NAME, "batch_size", batch_size, 1)
    if shuffle is not None:
        check_count(_NAME, "shuffle", shuffle, 1)
    check_count(_NAME, "seed", seed, 0)
    check_count(_NAME, "threads", threads, 1)
    check_max_errors(_NAME, max_errors)
    if errors is not None and not isinstance(errors, ReadErrors):
        refuse(_NAME, "errors", "a tf_ext.data.ReadErrors or None", errors)
    if tf.inside_function():
        raise RuntimeError(
            "tf_ext.data.read parses in the process that calls it, so it must "
            "not be called in a function that TensorFlow traces, such as one "
            "that makes a dataset on workers of a ParameterServerStrategy: "
            "give `fit` the dataset."
        )
    require_pyarrow(f"tf_ext.data.read(format={format!r})")
    reader = _reader(schema, format, header, int(threads))
    passes = _Passes(
        reader,
        _shard(_find(files), shard),
        batch_size=int(batch_size),
        shuffle=shuffle,
        seed=int(seed),
        repeat=bool(repeat),
        max_errors=max_errors,
        errors=errors if errors is not None else ReadErrors(),
        threads=int(threads),
    )
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        policies.DATA if shard is None else policies.OFF
    )
    return _dataset(passes, Layout(schema), int(batch_size), options)


def _reader(
    schema: Schema, format: str | Csv, header: bool, threads: int
) -> typing.Any:
    if not isinstance(header, bool):
        refuse(_NAME, "header", "True or False", header)
    dialect = format if isinstance(format, Csv) else _DIALECTS.get(format)
    if header and dialect is None:
        refuse(_NAME, "header", f"False for {format}", header)
    if format == "jsonl":
        return JsonFiles(schema)
    if format == "tfrecord":
        return RecordFiles(schema)
    if dialect is None:
        return ParquetFiles(schema, threads)
    for field in schema.used:
        if is_list(field):
            allowed = f"one in which bags have a `separator` for {format}"
            refuse(_NAME, "schema", allowed, field)
    return CsvFiles(schema, dialect, header)


def _find(files: Files | Iterable[Files]) -> list[str]:
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    found: list[str] = []
    for file in given:
        path = os.fspath(file)
        is_pattern = any(c in posixpath.basename(path) for c in "*?[")
        if is_pattern and not tf.io.gfile.exists(path):
            matching = sorted(tf.io.gfile.glob(path))
            if not matching:
                raise FileNotFoundError(_absent("No file matches", path))
            found += matching
            continue
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(_absent("There is no file", path))
        found.append(path)
    if not found or len(set(found)) < len(found):
        refuse(_NAME, "files", "paths of files, each once", files)
    return found


def _absent(what: str, path: str) -> str:
    return (
        f"{what} {path}. Argument `files` of {_NAME} must be paths of files or "
        "patterns of their names, *, ? and []. Relative paths begin in the "
        f"directory {os.getcwd()!r}."
    )


def _shard(files: list[str], shard: Shard | None) -> list[str]:
    if shard is None:
        return files
    if isinstance(shard, tf.distribute.InputContext):
        shard = (shard.input_pipeline_id, shard.num_input_pipelines)
    if (
        not isinstance(shard, tuple)
        or len(shard) != 2
        or not all(is_int(number) for number in shard)
        or not 0 <= shard[0] < shard[1]
    ):
        allowed = (
            "(index, count), two integers with 0 <= index < count, or a "
            "tf.distribute.InputContext"
        )
        refuse(_NAME, "shard", allowed, shard)
    index, count = shard
    if len(files) < count:
        allowed = f"of at most {len(files)} shards, the number of files"
        refuse(_NAME, "shard", allowed, shard)
    return files[index::count]


class _Window(typing.NamedTuple):
    """Records, and the order of their rows in batches."""

    part: Part
    order: npt.NDArray[np.int64]


def _in_order(part: Part) -> _Window:
    return _Window(part, np.arange(part.rows))


@dataclasses.dataclass
class _Passes:
    """What an iteration of the dataset reads."""

    reader: typing.Any
    files: list[str]
    batch_size: int
    shuffle: int | None
    seed: int
    repeat: bool
    max_errors: float
    errors: ReadErrors
    threads: int
    epoch: Epoch = dataclasses.field(default_factory=Epoch)

    def windows(self) -> Generator[_Window, None, None]:
        """Yields windows; all but a pass's last one are of whole batches."""
        for number in itertools.count(self.epoch.number):
            some = False
            for window in self._of_pass(number):
                some = True
                yield window
            self.errors.check(self.max_errors, at_end=True)
            if not (self.repeat and some):
                return

    def _of_pass(self, number: int) -> Iterator[_Window]:
        rng = np.random.default_rng((self.seed, number))
        files = self.files
        if self.shuffle is not None:
            files = [files[i] for i in rng.permutation(len(files))]
        batches = -(-(self.shuffle or 1) // self.batch_size)
        wanted = batches * self.batch_size
        waiting: list[Part] = []
        rows = 0
        with contextlib.closing(self._parts(files)) as parts:
            for part in parts:
                waiting.append(part)
                rows += part.rows
                if rows < wanted:
                    continue
                cut = rows - rows % self.batch_size
                last = part.rows - (rows - cut)
                # Without the last part there are fewer than `wanted`: it
                # alone has rows of later batches.
                waiting[-1] = part.slice(0, last)
                yield from self._cut(waiting, rng)
                rows -= cut
                waiting = [part.slice(last, part.rows)]
        if rows:
            yield from self._cut(waiting, rng)

    def _cut(
        self, parts: list[Part], rng: np.random.Generator
    ) -> Iterator[_Window]:
        """Yields parts as one window, or as few as copy little."""
        parts = [part for part in parts if part.rows] or parts[:1]
        if self.shuffle is not None:
            whole = concat(parts)
            yield _Window(whole, rng.permutation(whole.rows))
            return
        first = sum(part.rows for part in parts[:-1])
        # A batch that begins in earlier parts and ends in the last one.
        head = -first % self.batch_size
        if not first or head >= parts[-1].rows:
            yield _in_order(concat(parts))
            return
        last = parts[-1]
        begin = last.slice(0, head)
        yield _in_order(concat([*parts[:-1], begin]))
        yield _in_order(last.slice(head, last.rows))

    def _parts(self, files: list[str]) -> Generator[Part, None, None]:
        """Yields the well-formed records of files, block by block, in order."""
        blocks = (
            (file, index, parse)
            for file in files
            for index, parse in enumerate(self.reader.blocks(file))
        )
        with contextlib.closing(_ordered(blocks, self.threads)) as parsed:
            for file, index, block in parsed:
                self.errors.add(
                    *(file, index, block.records, block.malformed, block.unit)
                )
                self.errors.check(self.max_errors)
                yield block.part


def _ordered(
    blocks: Iterator[tuple[str, int, Callable[[], Parsed]]], threads: int
) -> Generator[tuple[str, int, Parsed], None, None]:
    """Parses blocks by threads; yields them in order."""
    ahead: collections.deque[typing.Any] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads) as executor:
        try:
            for file, index, parse in blocks:
                ahead.append((file, index, executor.submit(parse)))
                if len(ahead) > threads:
                    first = ahead.popleft()
                    yield (*first[:2], first[2].result())
            while ahead:
                first = ahead.popleft()
                yield (*first[:2], first[2].result())
        finally:
            for _, _, future in ahead:
                future.cancel()


def _dataset(
    passes: _Passes,
    layout: Layout,
    batch_size: int,
    options: tf.data.Options,
) -> tf.data.Dataset:
    """The batches of the windows of `passes`."""
    signature = (
        tf.TensorSpec([], tf.string),  # An error.
        tf.TensorSpec([None], tf.int64),
        *layout.signature,
    )

    def generate() -> Iterator[tuple[typing.Any, ...]]:
        try:
            with contextlib.closing(passes.windows()) as windows:
                for window in windows:
                    yield ("", window.order, *layout.tensors(window.part))
        except ReadingError as error:
            # To a function's error TensorFlow would add all frames of Python.
            yield (error.as_text(), *map(_empty, signature[1:]))

    # AutoGraph would take longer than the reading of a small file.
    @tf.autograph.experimental.do_not_convert
    def begins(
        error: tf.Tensor, order: tf.Tensor, *tensors: tf.Tensor
    ) -> tf.data.Dataset:
        with tf.control_dependencies([exchange_ops.raise_error(error)]):
            rows = tf.size(order, tf.int64)
        return tf.data.Dataset.range(0, rows, batch_size).map(
            lambda begin: (begin, order, *tensors)
        )

    @tf.autograph.experimental.do_not_convert
    def batch(
        begin: tf.Tensor, order: tf.Tensor, *tensors: tf.Tensor
    ) -> typing.Any:
        return layout.batch(tensors, order[begin : begin + batch_size])

    windows = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    ).with_options(options)
    # Each stage counts the bytes of all strings of an element, so they are made
    # in the last one.
    batches = windows.flat_map(begins).map(batch).prefetch(tf.data.AUTOTUNE)
    return mark(batches, [passes.epoch])


def _empty(spec: tf.TensorSpec) -> npt.NDArray[typing.Any]:
    shape = [size or 0 for size in spec.shape]
    return np.empty(shape, spec.dtype.as_numpy_dtype)
