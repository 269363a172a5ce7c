# SPDX-License-Identifier: Apache-2.0
"""The candidates with the highest scores for a query."""

import typing
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tf_ext._checks import check_count, refuse
from tf_ext._keras import keras
from tf_ext.feature_column.bags import hash_batch
from tf_ext.feature_column.category_column import CategoryColumn
from tf_ext.layers import top_k
from tf_ext.layers.candidates import (
    ID_DTYPES,
    MISSING,
    NO_INDEX,
    Array,
    has_index,
    load_ids,
    places_of,
    save_ids,
    shown,
    to_embeddings,
    to_ids,
    to_pair,
)
from tf_ext.regimes import regime_in_scope
from tf_ext.tables.saving import keras_files
from tf_ext.tables.sparse_table import SparseTable

_NAME = "Retrieval"
_Ids: typing.TypeAlias = typing.Any
_Results: typing.TypeAlias = tuple[tf.Tensor, tf.Tensor]


@keras.utils.register_keras_serializable(package="tf_ext")
class Retrieval(keras.layers.Layer):
    """The ids of the `k` candidates with the highest scores, exactly.

    The score of a candidate is the inner product of its embedding and that of
    the query. Candidates are compared block by block, and the best ones of all
    blocks are merged, so memory does not grow with their number.

    Candidates are added, replaced and removed at any time, between calls: the
    model stays the same, and no function is traced again. Each change copies
    the index: change many candidates at a time. Threads may query at once, but
    not while another one changes the index: queries would fail, or pair the id
    of a candidate with the score of another one. Let them share a lock.

    The index is saved with the model, in `.keras` and `.weights.h5` files and
    by `tf.train.Checkpoint`; loading replaces it. Exports contain it, and only
    TensorFlow's own ops. It is not part of the layer's `weights`, and
    `callbacks.TableSnapshot` does not save it: index again after a restart.

    Args:
      dim: int, at least 1, the size of an embedding.
      k: int, at least 1, how many candidates are found.
      id_dtype: "int64" or "string". All ids of these types are legal.
      block_size: int, at least 1, how many candidates are compared at a time:
        scores take `4 * batch_size * block_size` bytes. None: 65,536, or more
        as long as scores take at most 4 MB.
      **kwargs: `name`.

    Call arguments:
      queries: floats `[batch_size, dim]`, finite.
      exclusions: ids that are not found for a query, such as those that a user
        has seen: `[batch_size, n]`, dense or ragged. Ids that are not in the
        index have no effect: fill up with those. None for no exclusions.
      k: int, or None for that of the constructor.

    Returns:
      When called, `(scores, ids)`: float32 and `id_dtype`, both `[batch_size,
      k]`, with descending scores. Of equal scores, the candidate that was
      indexed first comes first. If there are fewer than `k` candidates, scores
      are `-inf` and ids -1 or "" in the remaining places. Scores have no
      gradient.

    Raises:
      ValueError: an argument is out of its range, or has another shape or dtype
        than these.
      tf.errors.InvalidArgumentError: when called, a query is not finite, or
        there has been no index yet.
      NotImplementedError: when called under ParameterServerStrategy.

    Example:
    >>> retrieval = tf_ext.layers.Retrieval(dim=2, k=2, id_dtype="string")
    >>> retrieval.index(
    ...     ["tea", "milk", "salt"],
    ...     np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
    >>> query = tf.constant([[1.0, 0.25]])
    >>> scores, ids = retrieval(query)
    >>> ids.numpy().tolist(), scores.numpy().tolist()
    ([[b'tea', b'milk']], [[1.0, 0.625]])
    >>> retrieval(query, exclusions=tf.constant([["tea"]]))[1].numpy().tolist()
    [[b'milk', b'salt']]
    >>> retrieval.add(["bread"], np.array([[2.0, 2.0]]))
    1
    >>> retrieval.remove(["milk"])
    >>> retrieval(query)[1].numpy().tolist()
    [[b'bread', b'tea']]
    """

    def __init__(
        self,
        dim: int,
        k: int = 10,
        id_dtype: str = "int64",
        block_size: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        # Ids and scores do not depend on a policy.
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        for name, value in [("dim", dim), ("k", k)]:
            check_count(_NAME, name, value, 1)
        if block_size is not None:
            check_count(_NAME, "block_size", block_size, 1)
            block_size = int(block_size)
        if id_dtype not in ID_DTYPES:
            allowed = " or ".join(map(repr, ID_DTYPES))
            refuse(_NAME, "id_dtype", allowed, id_dtype)
        self.dim, self.k = int(dim), int(k)
        self.id_dtype, self.block_size = id_dtype, block_size

        def variable(name: str, dtype: str, *shape: int | None) -> tf.Variable:
            empty = tf.zeros([size or 0 for size in shape], dtype)
            return tf.Variable(empty, trainable=False, name=name, shape=shape)

        with tf.init_scope():
            # Keras has no weights of unknown shapes, and tf_keras fails with
            # them. A Checkpoint is tracked, and nothing else.
            self._stored = tf.train.Checkpoint(
                embeddings=variable("embeddings", "float32", None, self.dim),
                ids=variable("ids", id_dtype, None),
            )
        self._forget()
        self.built = True

    # The index

    def _forget(self) -> None:
        no_index = tf.constant(NO_INDEX[self.id_dtype], self.id_dtype)
        self._stored.ids.assign(no_index)

    @property
    def ids(self) -> Array:
        """The ids of all candidates, in the order in which they were indexed.

        A NumPy array `[n]`, of int64 or of bytes.
        """
        ids = tf.convert_to_tensor(self._stored.ids).numpy()
        return ids[: self.size]

    @property
    def embeddings(self) -> Array:
        """The embeddings in the order of `ids`: float32 `[n, dim]`."""
        return tf.convert_to_tensor(self._stored.embeddings).numpy()

    @property
    def size(self) -> int:
        """The number of candidates."""
        return int(tf.shape(tf.convert_to_tensor(self._stored.embeddings))[0])

    def index(self, ids: _Ids, embeddings: typing.Any) -> None:
        """Replaces all candidates.

        Args:
          ids: integers or strings `[n]`, distinct: an array, a list or a
            tensor.
          embeddings: floats `[n, dim]`, finite.

        Raises:
          ValueError: other shapes, dtypes or values, or an id twice. The index
            is unchanged.
        """
        owner = f"{_NAME}.index"
        ids = to_ids(owner, ids, self.id_dtype)
        self._assign(ids, to_embeddings(owner, embeddings, len(ids), self.dim))

    def index_from_dataset(self, dataset: Iterable[typing.Any]) -> None:
        """Replaces all candidates by those of a dataset.

        Args:
          dataset: finite tf.data.Dataset, or another iterable, of batches
            `(ids [n], embeddings [n, dim])`, as for `index`:
            `items.map(lambda x: (x["item"], tower(x)))`.

        Raises:
          ValueError: as for `index`, or elements that are no such pairs.
        """
        ids: list[Array] = []
        embeddings: list[Array] = []
        owner = f"{_NAME}.index_from_dataset"
        for batch in dataset:
            found, vectors = to_pair(owner, batch)
            ids.append(to_ids(owner, found, self.id_dtype))
            vectors = to_embeddings(owner, vectors, len(ids[-1]), self.dim)
            embeddings.append(vectors)
        if ids:
            # An id may be in two batches.
            joined = to_ids(owner, np.concatenate(ids), self.id_dtype)
            self._assign(joined, np.concatenate(embeddings))
        else:
            self._assign(np.zeros(0), np.zeros((0, self.dim), np.float32))

    def index_from_table(
        self,
        table: SparseTable,
        ids: _Ids = None,
        column: CategoryColumn | None = None,
    ) -> None:
        """Replaces all candidates by rows of a table.

        Args:
          table: SparseTable of `dim`.
          ids: as for `index`, values of `column`; ids without a row have their
            initial weights. None for all rows: ids are the table's signs then,
            which are the values of columns with `hashing="identity"`.
          column: `tf_ext.feature_column.category_column` by which ids become
            signs; None if they are signs.

        Raises:
          ValueError: as for `index`; a table of another `dim`; all rows of a
            table that is shared out among workers; ids that the column treats
            as missing.
        """
        owner = f"{_NAME}.index_from_table"
        if not isinstance(table, SparseTable) or table.dim != self.dim:
            found = f"dim {table.dim}" if hasattr(table, "dim") else table
            refuse(owner, "table", f"a SparseTable of dim {self.dim}", found)
        if ids is None:
            if column is not None or self.id_dtype != "int64":
                allowed = (
                    'given with a column, or with id_dtype="string": a table '
                    "has signs, from which ids cannot be computed"
                )
                refuse(owner, "ids", allowed, None)
            if not table.rows.regime.placement.has_all:
                allowed = "given where each worker has a part of the rows"
                refuse(owner, "ids", allowed, None)
            signs, fields = table.export_rows()
            return self.index(signs, fields["weights"])
        ids = to_ids(owner, ids, self.id_dtype)
        return self.index(ids, table.pull(_signs(owner, ids, column)))

    def add(self, ids: _Ids, embeddings: typing.Any) -> int:
        """Adds candidates, and replaces the embeddings of those in the index.

        Args:
          ids: as for `index`.
          embeddings: as for `index`.

        Returns:
          int, how many of them were not in the index.

        Raises:
          ValueError: as for `index`. The index is unchanged.
        """
        owner = f"{_NAME}.add"
        ids = to_ids(owner, ids, self.id_dtype)
        rows = to_embeddings(owner, embeddings, len(ids), self.dim)
        old_ids, old_rows = self.ids, self.embeddings
        places = places_of(ids, old_ids)
        new = places < 0
        joined = np.concatenate([old_rows, rows[new]])
        joined[places[~new]] = rows[~new]
        self._assign(np.concatenate([old_ids, ids[new]]), joined)
        return int(new.sum())

    def remove(self, ids: _Ids) -> None:
        """Removes candidates.

        Args:
          ids: as for `index`.

        Raises:
          ValueError: as for `index`, or an id that is not in the index, which
            is unchanged then.
        """
        owner = f"{_NAME}.remove"
        ids = to_ids(owner, ids, self.id_dtype)
        old = self.ids
        places = places_of(ids, old)
        unknown = ids[places < 0]
        if len(unknown):
            raise ValueError(
                f"Argument `ids` of {owner} must be ids of the index. "
                f"Received: {shown(unknown)}, not in the index"
            )
        kept = np.ones(len(old), bool)
        kept[places] = False
        self._assign(old[kept], self.embeddings[kept])

    def _assign(self, ids: Array, embeddings: Array) -> None:
        # TensorFlow cannot convert an empty array of objects.
        text = self.id_dtype == "string"
        values = ids.tolist() if text else ids
        self._stored.embeddings.assign(embeddings)
        self._stored.ids.assign(tf.constant(values, self.id_dtype, ids.shape))

    # Queries

    def call(
        self,
        queries: tf.Tensor,
        exclusions: tf.Tensor | tf.RaggedTensor | None = None,
        k: int | None = None,
    ) -> _Results:
        """Finds candidates; see the class."""
        regime_in_scope().placement.check_sizes_change(_NAME)
        k = self._checked_k(k)
        queries = self._checked_queries(queries)
        embeddings = tf.convert_to_tensor(self._stored.embeddings)
        ids = tf.convert_to_tensor(self._stored.ids)
        with tf.control_dependencies(has_index(self.name, ids, embeddings)):
            queries = tf.identity(queries)
        excluded, wanted = self._checked_exclusions(exclusions, k)
        scores, places = top_k.blocked_top_k(
            queries, embeddings, wanted, self.block_size
        )
        return _finish((scores, tf.gather(ids, places)), excluded, k)

    def search(
        self,
        queries: tf.Tensor,
        dataset: tf.data.Dataset,
        exclusions: tf.Tensor | tf.RaggedTensor | None = None,
        k: int | None = None,
    ) -> _Results:
        """Finds candidates of a dataset instead of those of the index.

        It is for candidates that do not fit into memory: each call reads the
        whole dataset, a batch at a time.

        Args:
          queries: as for a call.
          dataset: finite tf.data.Dataset of batches `(ids [n], embeddings [n,
            dim])`. Ids must be distinct, which is not checked.
          exclusions: as for a call.
          k: as for a call.

        Returns:
          `(scores, ids)`, as of a call.

        Raises:
          ValueError: as for a call, or elements that are no such pairs.
          tf.errors.InvalidArgumentError: a query or an embedding is not finite.
        """
        owner = f"{_NAME}.search"
        k = self._checked_k(k)
        queries = self._checked_queries(queries)
        excluded, wanted = self._checked_exclusions(exclusions, k)
        ids, embeddings = to_pair(owner, dataset.element_spec)
        if tf.as_dtype(ids.dtype) != self.id_dtype or ids.shape.rank != 1:
            refuse(owner, "dataset", f"of ids [n] of {self.id_dtype}", ids)
        _check_vectors(owner, "dataset", embeddings, self.dim)

        def merge_batch(top: top_k.Top, batch: typing.Any) -> top_k.Top:
            rows = _finite(batch[1], "Candidates of Retrieval.search")
            scores, places = top_k.blocked_top_k(
                queries, rows, wanted, self.block_size
            )
            found = scores, tf.gather(batch[0], places)
            return top_k.merge(top, found, wanted)

        nothing = (
            tf.zeros([tf.shape(queries)[0], 0]),
            tf.zeros([tf.shape(queries)[0], 0], self.id_dtype),
        )
        top = dataset.reduce(nothing, merge_batch)
        return _finish(top, excluded, k)

    def _checked_k(self, k: typing.Any) -> int:
        if k is None:
            return self.k
        check_count(_NAME, "k", k, 1)
        return int(k)

    def _checked_queries(self, queries: typing.Any) -> tf.Tensor:
        queries = tf.convert_to_tensor(queries)
        _check_vectors(_NAME, "queries", queries, self.dim)
        return tf.stop_gradient(_finite(queries, "Queries of Retrieval"))

    def _checked_exclusions(
        self, exclusions: typing.Any, k: int
    ) -> tuple[tf.Tensor | tf.RaggedTensor | None, tf.Tensor]:
        """The exclusions, and how many candidates they may hide, plus k."""
        if exclusions is None:
            return None, tf.constant(k)
        ragged = isinstance(exclusions, tf.RaggedTensor)
        if not ragged:
            exclusions = tf.convert_to_tensor(exclusions)
        dtype = exclusions.dtype
        if self.id_dtype == "int64" and dtype.is_integer:
            exclusions = tf.cast(exclusions, tf.int64)
        if exclusions.dtype != self.id_dtype or exclusions.shape.rank != 2:
            allowed = f"{self.id_dtype} [batch_size, n]"
            found = f"{dtype.name} {exclusions.shape}"
            refuse(_NAME, "exclusions", allowed, found)
        width = (
            exclusions.bounding_shape(1, out_type=tf.int32)
            if ragged
            else tf.shape(exclusions)[1]
        )
        return exclusions, k + width

    def compute_output_spec(
        self,
        queries: typing.Any,
        exclusions: typing.Any = None,
        k: int | None = None,
    ) -> typing.Any:
        """The results' shapes for Keras 3's functional models."""
        regime_in_scope().placement.check_sizes_change(_NAME)
        _check_vectors(_NAME, "queries", queries, self.dim)
        shape = (queries.shape[0], self._checked_k(k))
        return (
            keras.KerasTensor(shape, "float32"),
            keras.KerasTensor(shape, self.id_dtype),
        )

    # Saving

    def save_own_variables(self, store: typing.Any) -> None:
        """Saves the index in Keras's files."""
        store["embeddings"] = self.embeddings
        save_ids(store, self.ids, self.id_dtype)

    def load_own_variables(self, store: typing.Any) -> None:
        """Replaces the index by a saved one."""
        ids = load_ids(store, self, "index of Retrieval")
        owner, embeddings = f"{_NAME}.index", np.asarray(store["embeddings"])
        embeddings = to_embeddings(owner, embeddings, len(ids), self.dim)
        if not keras_files.checks_only():
            self._assign(ids, embeddings)
            if not len(ids):
                self._forget()  # Files do not tell it from an empty index.

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "dim": self.dim,
            "k": self.k,
            "id_dtype": self.id_dtype,
            "block_size": self.block_size,
        }


def _signs(owner: str, ids: Array, column: typing.Any) -> Array | tf.Tensor:
    if column is None:
        if ids.dtype != np.int64:
            refuse(owner, "column", 'given with id_dtype="string"', None)
        return ids
    if not isinstance(column, CategoryColumn):
        refuse(owner, "column", "a category_column", column)
    features = {column.key: tf.constant(ids.tolist())}
    signs = hash_batch([column], features, return_error=False).bags.signs
    if len(signs) != len(ids):
        refuse(owner, "ids", f"other than {column.missing!r}", "a missing id")
    return signs


def _check_vectors(
    owner: str, argument: str, vectors: typing.Any, dim: int
) -> None:
    shape = tf.TensorShape(vectors.shape)
    floats = tf.as_dtype(vectors.dtype).is_floating
    if not floats or not shape.is_compatible_with([None, dim]):
        allowed = f"floats [n, {dim}]"
        found = f"{tf.as_dtype(vectors.dtype).name} {shape}"
        refuse(owner, argument, allowed, found)


def _finite(vectors: tf.Tensor, what: str) -> tf.Tensor:
    """The vectors in float32; an error unless all their products are finite."""
    vectors = tf.cast(vectors, tf.float32)
    norms = tf.reduce_sum(tf.square(vectors), 1)
    checked = tf.debugging.check_numerics(
        norms, f"{what} must be finite, and so must the squares of their norms"
    )
    with tf.control_dependencies([checked]):
        return tf.identity(vectors)


def _finish(
    top: top_k.Top, excluded: tf.Tensor | tf.RaggedTensor | None, k: int
) -> _Results:
    if excluded is not None:
        found = top_k.is_member(top[1], excluded)
        top = top_k.drop(top, found, tf.constant(k))
    missing = MISSING["string" if top[1].dtype == tf.string else "int64"]
    return top_k.fill(top, k, missing)
