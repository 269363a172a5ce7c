"""The layer between raw features and tables."""

import tensorflow as tf

from tf_ext import ops
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import columns_to_bags
from tf_ext.feature_column.bags import check_inputs, columns_to_bags_or_error
from tf_ext.layers.column_sets import ColumnSets
from tf_ext.tables import cloning
from tf_ext.tables.sparse_table import SparseTable
from tf_ext.tables.transport import PullRequest, get_transport


@keras.utils.register_keras_serializable(package="tf_ext")
class EmbeddingFeatures(keras.layers.Layer):
    """Embeds sparse features: hashes them, reads rows, combines bags.

    All columns are hashed in one op; the distinct signs of the batch are read
    from the tables, and each column's bag of rows becomes one vector. In
    training, absent rows are created and the gradient goes back to the tables
    through `tf_ext.optimizers.Optimizer`.

    The argument `training` only decides whether a call creates absent rows. The
    gradient does not depend on it, as in `keras.layers.Embedding`: under a
    `tf.GradientTape` rows are trained with `training=False` and without it too,
    with the same results, since the update creates the rows that are absent.
    `trainable=False` of the table or the layer keeps rows as they are.

    Inputs are a dict of features, by column key: dense `[batch_size]` or
    `[batch_size, n]`, `tf.SparseTensor` `[batch_size, n]` or
    `tf.RaggedTensor` `[batch_size, None]`, of strings, integers or, for
    columns with boundaries, floats. Keys that no column names are ignored.

    Args:
      columns: list of columns of `tf_ext.feature_column` and then `table`; or a
        dict `{table: list of columns}`, alone. A column may be in several
        lists; it is hashed once.
      table: `tf_ext.SparseTable`, if `columns` is a list.
      concatenate: bool. If False, the outputs of a table's columns are not
        concatenated but a dict by column name.
      trainable: bool; if False, rows are neither created nor updated by this
        layer.
      name: string, the layer's name.

    Returns:
      When called: `[batch_size, len(columns) * table.dim]`, the columns side by
      side in their order; or `{column.name: [batch_size, table.dim]}`. With a
      dict of tables: `{table.name: that}`. The dtype is the layer's compute
      dtype.

    Raises:
      ValueError: columns or tables that are none, names that occur twice; when
        called, a missing feature (unless the column is optional) or features
        of different batch sizes.

    Example:
    >>> import tensorflow as tf
    >>> import tf_ext
    >>> user = tf_ext.feature_column.category_column("user")
    >>> tags = tf_ext.feature_column.category_column("tags", combiner="mean")
    >>> table = tf_ext.SparseTable("deep", dim=4, optimizer="adagrad")
    >>> layer = tf_ext.layers.EmbeddingFeatures([user, tags], table)
    >>> layer({
    ...     "user": tf.constant(["ann", "bob"]),
    ...     "tags": tf.ragged.constant([["a", "b"], []]),
    ... }).shape
    TensorShape([2, 8])
    """

    def __init__(
        self,
        columns,
        table=None,
        concatenate=True,
        trainable=True,
        name=None,
        **kwargs,
    ):
        # Raw features: casting an id or a bucketised number to the compute
        # dtype would change it.
        kwargs["autocast"] = False
        super().__init__(name=name, trainable=trainable, **kwargs)
        by_table = _by_table(columns, table)
        self._several = table is None
        self.concatenate = bool(concatenate)
        self._table_count = len(by_table)
        for index, one in enumerate(by_table):
            # One by one: Keras 3 hides lists of layers from checkpoints.
            setattr(self, f"_table_{index}", one)
            one.column_record.add(by_table[one])
        self._columns = tuple(tuple(c) for c in by_table.values())
        self._sets = ColumnSets(self._columns)
        if IS_KERAS_3:
            self.supports_jit = False
            self._allow_non_tensor_positional_args = True
            self._convert_input_args = False
        self.built = True

    @property
    def trainable(self):
        """Whether this layer creates and updates rows.

        Other layers on the same tables are not concerned: set the table's own
        `trainable` for all of them.
        """
        return super().trainable

    @trainable.setter
    def trainable(self, value):
        self._trainable = bool(value)

    @property
    def tables(self):
        """The tables, in a list."""
        return [getattr(self, f"_table_{i}") for i in range(self._table_count)]

    @property
    def columns(self):
        """The columns, in a tuple for each of `tables`."""
        return self._columns

    def build(self, input_shape=None):
        """Nothing to do: tables have their rows when they need them."""

    def call(self, inputs, training=None):
        """Embeds a batch; see the class."""
        insert = _as_flag(training, self.trainable)
        transport = get_transport(self.tables)
        error = None
        if transport.shares_errors:
            bags, error = columns_to_bags_or_error(self._sets.columns, inputs)
        else:
            bags = columns_to_bags(self._sets.columns, inputs)
        parts = self._sets.split(bags)
        pulled = self._pull(transport, parts, insert, error)
        outputs = {
            table.name: self._combine(rows, columns, unique, part)
            for table, columns, (rows, unique, part) in zip(
                self.tables, self._columns, pulled
            )
        }
        return outputs if self._several else outputs[self.tables[0].name]

    def _pull(self, transport, parts, insert, error):
        """Rows for each table: a list of (rows, unique, bags)."""
        # One unique for tables that read the same columns.
        uniques = {}
        for table, part in zip(self.tables, parts):
            key = part.key, table.rows.num_shards
            if key not in uniques:
                uniques[key] = ops.unique_by_shard(part.bags.signs, key[1])
        requests = [
            PullRequest(
                table,
                uniques[part.key, table.rows.num_shards],
                insert if table.trainable else False,
            )
            for table, part in zip(self.tables, parts)
        ]
        rows = pull_differentiable(transport, requests, self.trainable, error)
        return [
            (r, request.unique, part.bags)
            for r, request, part in zip(rows, requests, parts)
        ]

    def _combine(self, rows, columns, unique, bags):
        combined = combine(rows, unique.inverse, bags, columns)
        combined = tf.cast(combined, self.compute_dtype)
        if self.concatenate:
            return combined
        pieces = tf.split(combined, len(columns), axis=1)
        return {column.name: p for column, p in zip(columns, pieces)}

    def _outputs(self, make):
        """The structure of the outputs, with `make(width)` for tensors."""
        outputs = {}
        for table, columns in zip(self.tables, self._columns):
            if self.concatenate:
                outputs[table.name] = make(len(columns) * table.dim)
            else:
                outputs[table.name] = {c.name: make(table.dim) for c in columns}
        return outputs if self._several else outputs[self.tables[0].name]

    def compute_output_spec(self, inputs, training=None):
        """The outputs' shapes for Keras 3's functional models.

        Raises:
          ValueError: an input is missing, or of a type that its column does
            not take.
        """
        check_inputs(self._sets.columns, inputs)
        batch = next(iter(inputs.values())).shape[0] if inputs else None
        return self._outputs(
            lambda width: keras.KerasTensor((batch, width), self.compute_dtype)
        )

    def compute_output_shape(self, input_shape):
        """The outputs' shapes, from a dict of the inputs'."""
        shapes = list(input_shape.values())
        batch = shapes[0][0] if shapes else None
        return self._outputs(lambda width: (batch, width))

    def get_config(self):
        """The constructor's arguments, for Keras's savers."""
        serialize = keras.utils.serialize_keras_object
        return super().get_config() | {
            "columns": [
                [serialize(column) for column in columns]
                for columns in self._columns
            ],
            "tables": [serialize(table) for table in self.tables],
            "several": self._several,
            "concatenate": self.concatenate,
        }

    @classmethod
    def from_config(cls, config):
        """The layer that `get_config` describes, on new, empty tables.

        Layers that shared a table share a new one if Keras makes them in one
        go, in `load_model` or `clone_model`.
        """
        config = dict(config)
        config.pop("autocast", None)
        deserialize = keras.utils.deserialize_keras_object
        tables = [
            cloning.copy_for(
                table["config"]["uid"],
                lambda table=table: SparseTable.from_config(table["config"]),
            )
            for table in config.pop("tables")
        ]
        columns = [
            [deserialize(column) for column in columns]
            for columns in config.pop("columns")
        ]
        if config.pop("several"):
            return cls(dict(zip(tables, columns)), **config)
        return cls(columns[0], tables[0], **config)


def pull_differentiable(transport, requests, trainable=True, error=None):
    """Reads rows so that their gradient goes to the tables' shadows.

    Args:
      transport: that of the tables.
      requests: list of PullRequest of distinct signs.
      trainable: bool; if False no gradient flows.
      error: string scalar, what is wrong with the batch, or ""; None where
        that has been raised already.

    Returns:
      List of float32 `[n, dim]`.
    """
    rows = transport.pull(requests, error)
    return [
        _attach_gradient(request, pulled)
        if trainable and request.table.trainable
        else pulled
        for request, pulled in zip(requests, rows)
    ]


def _attach_gradient(request, pulled):
    shadow = request.table.shadow
    return ops.route_gradient(
        pulled,
        shadow.value if IS_KERAS_3 else shadow,
        request.unique.unique,
    )


def combine(rows, inverse, bags, columns):
    """Bags of rows to one vector each.

    Args:
      rows: float32 `[u, dim]`.
      inverse: int32 `[n]`.
      bags: Bags of the columns.
      columns: list of columns.

    Returns:
      float32 `[batch_size, len(columns) * dim]`.
    """
    combiners = [column.combiner for column in columns]
    weighted = any(part.weights for c in columns for part in c.parts)
    if not (weighted and "max" in combiners):
        return ops.combine_bags(
            rows, inverse, bags.row_splits, bags.weights, combiners=combiners
        )
    # max knows no weights: those columns go alone.
    batch = (tf.size(bags.row_splits, tf.int64) - 1) // len(columns)
    pieces = []
    for index, combiner in enumerate(combiners):
        splits = bags.row_splits[index * batch : (index + 1) * batch + 1]
        values = slice(splits[0], splits[-1])
        pieces.append(
            ops.combine_bags(
                rows,
                inverse[values],
                splits - splits[0],
                None if combiner == "max" else bags.weights[values],
                combiners=[combiner],
            )
        )
    return tf.concat(pieces, 1)


def _by_table(columns, table):
    """`{table: columns}` from the constructor's arguments, checked."""
    if isinstance(columns, SparseTable):
        raise ValueError(
            "EmbeddingFeatures takes the columns first: EmbeddingFeatures("
            "columns, table). Received: columns=<SparseTable "
            f"{columns.name!r}>, table={table!r}"
        )
    if table is None and not isinstance(columns, dict):
        raise ValueError(
            "EmbeddingFeatures takes a list of columns and a `table`, or one "
            f"dict {{table: columns}}. Received: columns={columns!r}, "
            "table=None"
        )
    if table is not None and not isinstance(table, SparseTable):
        raise _no_table(table)
    by_table = columns if table is None else {table: columns}
    names = set()
    if not by_table:
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must not be empty."
        )
    for one, its_columns in by_table.items():
        if not isinstance(one, SparseTable):
            raise _no_table(one)
        if one.name in names:
            raise ValueError(
                "The tables of one EmbeddingFeatures must have different "
                f"names. Received {one.name!r} twice."
            )
        names.add(one.name)
        _check_columns(one, its_columns)
    return by_table


def _no_table(found):
    return ValueError(
        "Argument `table` of EmbeddingFeatures must be a tf_ext.SparseTable. "
        f"Received: {found!r}"
    )


def _check_columns(table, columns):
    if not isinstance(columns, (list, tuple)) or not columns:
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must be a non-empty list "
            f"for each table. Received for table {table.name!r}: {columns!r}"
        )
    seen = set()
    for column in columns:
        if not hasattr(column, "combiner"):
            raise ValueError(
                "Columns of EmbeddingFeatures are made by "
                "tf_ext.feature_column.category_column or crossed_column. "
                f"Received for table {table.name!r}: {column!r}"
            )
        if column.name in seen:
            raise ValueError(
                "The columns of one table must have different names. Received "
                f"{column.name!r} twice for table {table.name!r}."
            )
        seen.add(column.name)


def _as_flag(training, trainable):
    if not trainable or training is None:
        return False
    return training if tf.is_tensor(training) else bool(training)
