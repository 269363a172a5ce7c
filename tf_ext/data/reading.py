# SPDX-License-Identifier: Apache-2.0
"""Datasets of the records of files."""

import os
import typing
from collections.abc import Collection, Iterable

import tensorflow as tf

from tf_ext._checks import check_count, is_int, refuse
from tf_ext.data.arrow import require_pyarrow
from tf_ext.data.batches import batches_of
from tf_ext.data.dialect import Csv
from tf_ext.data.epochs import mark
from tf_ext.data.errors import ReadErrors, check_max_errors
from tf_ext.data.formats import Reader, reader_of
from tf_ext.data.hashed_datasets import HashedColumns
from tf_ext.data.hashed_reading import HashingReader, hashing_of
from tf_ext.data.layout import Layout
from tf_ext.data.passes import Passes
from tf_ext.data.schema import Schema
from tf_ext.data.tables import Tables, is_table

_NAME = "read"
Files: typing.TypeAlias = str | os.PathLike[str]
Shard: typing.TypeAlias = tuple[int, int] | tf.distribute.InputContext


def read(
    files: typing.Any,
    schema: Schema,
    format: str | Csv = "csv",
    *,
    batch_size: int,
    header: bool = False,
    shuffle: int | None = None,
    seed: int = 0,
    repeat: bool = False,
    shard: Shard | None = None,
    columns: HashedColumns | None = None,
    keep: Collection[str] = (),
    max_errors: float = 0.01,
    errors: ReadErrors | None = None,
    threads: int = 2,
) -> tf.data.Dataset:
    r"""Reads files of records, or tables in memory, into batches.

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
        system of TensorFlow. All but Parquet may be compressed by gzip. Or a
        table in memory, or several: a DataFrame of pandas or polars, a table of
        Arrow, or any object of Arrow's PyCapsule interface. Its rows are those
        of now; they are not copied, except for what pandas has in layouts of
        its own.
      schema: tf_ext.data.Schema.
      format: "csv", with quotes as in RFC 4180; "tsv", separated by tabs,
        without quotes; a tf_ext.data.Csv, with other delimiters or encodings;
        "jsonl", JSON lines; "tfrecord", of tf.train.Example; "parquet"; or
        "avro", object container files. In files of text, a line is a record, or
        several with a field in quotes.
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
        `count`-th file, from `index`; there must be at least `count` files. Of
        a table, the part `index` of `count` equal ones.
      columns: tf_ext.layers.EmbeddingFeatures, or a list of layers and columns,
        as of `tf_ext.data.hash_columns`. Their features are hashed where they
        are parsed, without tensors of strings, and batches have signs in their
        place.
      keep: keys of features that stay although they are hashed.
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

    Hashed:

      >>> user = tf_ext.feature_column.category_column("user")
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [user], tf_ext.SparseTable("read", 4))
      >>> signs = tf_ext.data.read(
      ...     file, schema, "tsv", batch_size=2, columns=layer)
      >>> for (raw, _), (hashed, _) in zip(data, signs):
      ...     print("user" in hashed, np.array_equal(layer(raw), layer(hashed)))
      False True

    A table in memory:

      >>> import pyarrow
      >>> table = pyarrow.table(
      ...     {"user": ["ann", "bob"], "price": [2.5, None], "click": [1, 0],
      ...      "tags": [["red", "new"], None]})
      >>> for features, labels in tf_ext.data.read(
      ...         table, tf_ext.data.Schema(
      ...             [tf_ext.data.Field("click", "float32"),
      ...              tf_ext.data.Field("tags", bag=True)], label="click"),
      ...         batch_size=2):
      ...     print(features["tags"].to_list(), labels.numpy())
      [[b'red', b'new'], []] [1. 0.]
    """
    if not isinstance(schema, Schema):
        refuse(_NAME, "schema", "a tf_ext.data.Schema", schema)
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
    hashing = hashing_of(_NAME, schema, columns, keep)
    reader, names = _reader(files, schema, format, header, shard, int(threads))
    passes = Passes(
        reader if hashing is None else HashingReader(reader, hashing.hasher),
        names,
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
    layout = Layout(schema, hashing and hashing.hasher)
    batches = batches_of(passes.windows, layout, int(batch_size), options)
    if hashing is not None:
        batches = hashing.of_others(batches)
    return mark(batches, [passes.epoch])


def _reader(
    files: typing.Any,
    schema: Schema,
    format: str | Csv,
    header: bool,
    shard: Shard | None,
    threads: int,
) -> tuple[Reader, list[str]]:
    """What reads the share of a worker, and the names of its files."""
    if shard is not None:
        shard = checked_shard(_NAME, shard)
    if not isinstance(files, str | os.PathLike):
        sources = [files] if is_table(files) else list(files)
        if any(map(is_table, sources)):
            if not all(map(is_table, sources)):
                allowed = "paths of files or tables, and not both"
                refuse(_NAME, "files", allowed, sources)
            if format != "csv" or header:
                argument = "header" if header else "format"
                refuse(
                    *(_NAME, argument, "left out for tables in memory"),
                    header or format,
                )
            tables = Tables(sources, schema, shard or (0, 1))
            return tables, tables.names
        files = sources
    found = _find(files)
    if shard is not None:
        index, count = shard
        if len(found) < count:
            allowed = f"of at most {len(found)} shards, the number of files"
            refuse(_NAME, "shard", allowed, shard)
        found = found[index::count]
    return reader_of(schema, format, header, threads), found


def _find(files: Files | Iterable[Files]) -> list[str]:
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    found: list[str] = []
    for file in given:
        path = os.fspath(file)
        is_pattern = any(c in path for c in "*?[")
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


def checked_shard(owner: str, shard: Shard) -> tuple[int, int]:
    """The argument `shard` of `owner` as `(index, count)`.

    Raises:
      ValueError: it is none.
    """
    if isinstance(shard, tf.distribute.InputContext):
        return shard.input_pipeline_id, shard.num_input_pipelines
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
        refuse(owner, "shard", allowed, shard)
    return shard
