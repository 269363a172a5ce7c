# SPDX-License-Identifier: Apache-2.0
"""The layer between raw features and tables."""

import functools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ext._batch_source import Give, batch_source
from tf_ext._checks import check_mapping
from tf_ext._compat import masks as keras_masks
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import Bags
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.hashed_features import identity_of
from tf_ext.layers import clicks
from tf_ext.layers import cvm as cvm_numbers
from tf_ext.layers.arguments import by_table, check_shapes
from tf_ext.layers.combining import combine
from tf_ext.layers.hashed_inputs import find_hashed, hash_inputs
from tf_ext.layers.pulling import (
    ColumnSets,
    Prepared,
    plan_tables,
    pull_differentiable,
)
from tf_ext.regimes import (
    PullPlan,
    PullRequest,
    Regime,
    regime_of_tables,
)
from tf_ext.tables import cloning, shadow
from tf_ext.tables.sparse_table import SparseTable

_Inputs = Mapping[str, typing.Any]
_Flag: typing.TypeAlias = bool | tf.Tensor


@keras.utils.register_keras_serializable(package="tf_ext")
class EmbeddingFeatures(keras.layers.Layer):
    """Embeds sparse features: hashes them, reads rows, combines bags.

    All columns are hashed in one op; the distinct signs of the batch are read
    from the tables, and each bag of rows is combined into one vector. In
    training, absent rows are created and the gradient reaches the tables
    through `tf_ext.optimizers.Optimizer`.

    The argument `training` only decides whether a call creates absent rows. The
    gradient does not depend on it, as in `keras.layers.Embedding`: under a
    `tf.GradientTape` rows are trained with `training=False` and without it too,
    with the same results, since the update creates the rows that are absent.
    `trainable=False` of the table or the layer keeps rows as they are.

    Inputs are a dict of features, by column key: dense `[batch_size]` or
    `[batch_size, n]`, `tf.SparseTensor` `[batch_size, n]` or
    `tf.RaggedTensor` `[batch_size, None]`, of strings, integers or, for
    columns with boundaries, floats. Other keys are ignored. Features that
    `tf_ext.data.hash_columns` has hashed may take their place.

    Args:
      columns: list of columns of `tf_ext.feature_column`, with `table`; or a
        dict `{table: list of columns}` without it. A column may be in several
        lists; it is hashed once.
      table: `tf_ext.SparseTable`, if `columns` is a list.
      concatenate: bool. If False, the outputs of a table's columns are not
        concatenated but a dict by column name. It must be False with columns of
        `sequence_category_column`, whose outputs are `[batch_size, length,
        dim]` and have a Keras mask.
      trainable: bool; if False, rows are neither created nor updated by this
        layer.
      name: string, the layer's name.
      click: string, the key of an input that holds a number or boolean, 0 or
        more, for each example, such as the label: `[batch_size]` or
        `[batch_size, 1]`. Tables with `statistics=["show", "click"]` add it to
        the "click" of an id whenever the id occurs in the example in training.
        It must be among the inputs if `training` is True; without it, no click
        is counted. A functional `tf_ext.Model` takes batches without it for
        predictions, unless something else reads it. None: no clicks.
      cvm: bool. If True, two numbers follow the embedding of each column:
        log(show + 1) and log(click + 1) - log(show + 1), where show and click
        are the statistics of the ids in the bag before the batch is trained,
        combined by the column's combiner without weights; see docs/rows.md.
        They have no gradient. All tables must have
        `statistics=["show", "click"]`, and all columns a combiner.

    Returns:
      When called: `[batch_size, len(columns) * table.dim]`, the columns side by
      side in their order; or `{column.name: [batch_size, table.dim]}`. With
      `cvm`, `table.dim + 2` takes the place of `table.dim`. With a dict of
      tables: `{table.name: that}`. The dtype is the layer's compute dtype.

    Raises:
      ValueError: objects that are not columns or tables, or names that occur
        twice; when called, a missing feature (unless the column is optional) or
        features of different batch sizes.

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

    With the statistics of ids:

    >>> table = tf_ext.SparseTable(
    ...     "cvm", dim=4, statistics=["show", "click"], initializer="zeros")
    >>> table.push([7], tf.zeros([1, 4]), statistics=[[9.0, 1.0]],
    ...     learning_rate=0.1)
    1
    >>> user = tf_ext.feature_column.category_column(
    ...     "user", hashing="identity")
    >>> layer = tf_ext.layers.EmbeddingFeatures([user], table, cvm=True)
    >>> layer({"user": tf.constant([7, 8])}).numpy().round(4)
    array([[ 0.    ,  0.    ,  0.    ,  0.    ,  2.3026, -1.6094],
           [ 0.    ,  0.    ,  0.    ,  0.    ,  0.    ,  0.    ]],
          dtype=float32)
    """

    def __init__(
        self,
        columns: Sequence[Column] | dict[SparseTable, Sequence[Column]],
        table: SparseTable | None = None,
        concatenate: bool = True,
        trainable: bool = True,
        name: str | None = None,
        click: str | None = None,
        cvm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        # Raw features: casting an id or a bucketised number to the compute
        # dtype would change it.
        kwargs["autocast"] = False
        super().__init__(name=name, trainable=trainable, **kwargs)
        columns_of = by_table(columns, table)
        clicks.check_key(click, columns_of)
        cvm_numbers.check(cvm, columns_of)
        self.click = click
        self.cvm = bool(cvm)
        self._several = table is None
        self.concatenate = bool(concatenate)
        if self.concatenate:
            check_shapes(columns_of)
        self._table_count = len(columns_of)
        for index, one in enumerate(columns_of):
            # One attribute each: Keras 3 hides lists of layers from
            # checkpoints.
            setattr(self, f"_table_{index}", one)
            one.column_record.add(columns_of[one])
            if self.cvm:
                one.serve_statistics()
        self._columns = tuple(tuple(c) for c in columns_of.values())
        self._sets = ColumnSets(self._columns)
        keras_masks.take_masks_of_outputs(self)
        if IS_KERAS_3:
            self.supports_jit = False
            self._allow_non_tensor_positional_args = True
            self._convert_input_args = False
        self.built = True

    @property
    def trainable(self) -> bool:
        """Whether this layer creates and updates rows.

        It does not affect other layers on the same tables: set the table's
        `trainable` for all of them.
        """
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)

    @property
    def tables(self) -> list[SparseTable]:
        """The tables, in a list."""
        return [getattr(self, f"_table_{i}") for i in range(self._table_count)]

    @property
    def columns(self) -> tuple[tuple[Column, ...], ...]:
        """The columns: a tuple for each of `tables`."""
        return self._columns

    def build(self, input_shape: _Inputs | None = None) -> None:
        """Checks that the inputs have all keys; tables need no building.

        Args:
          input_shape: dict of shapes by key, or None.

        Raises:
          ValueError: it is not a dict, or the feature of a column is missing.
        """
        if input_shape is None:
            return
        check_mapping(
            "EmbeddingFeatures.build", input_shape, "input_shape", "shapes"
        )
        for column in self._sets.columns:
            for part in column.parts:
                part.check_present(input_shape)

    def call(
        self, inputs: _Inputs, training: _Flag | None = None
    ) -> typing.Any:
        """Embeds a batch; see the class."""
        source = batch_source()
        if source.given is not None:
            return self._take(source.given, inputs)
        insert = _as_flag(training, self.trainable)
        regime = regime_of_tables(self.tables)
        prepared = (source.prepared or {}).pop(self, None)
        if prepared is None:
            prepared = self.prepare(inputs, training)
        return self._structured(
            self._combine(rows, statistics, columns, plan, part, prepared.masks)
            for columns, (rows, statistics, plan, part) in zip(
                self._columns, self._pull(regime, prepared, insert)
            )
        )

    def prepare(
        self, inputs: _Inputs, training: _Flag | None = None
    ) -> Prepared:
        """Hashes a batch, without reading rows.

        Args:
          inputs: as of a call.
          training: as of a call.
        """
        insert = _as_flag(training, self.trainable)
        regime = regime_of_tables(self.tables)
        source = batch_source()
        hashed = hash_inputs(
            self.name,
            self._sets.columns,
            inputs,
            source.hashed,
            regime.exchange.raises_together,
        )
        bags = hashed.bags
        error = hashed.error if regime.exchange.raises_together else None
        its_clicks = None
        if self.click is not None and regime.exchange.trains and self.trainable:
            others = {k: one for k, one in inputs.items() if k != self.click}
            its_clicks, error = clicks.of_batch(
                self.click,
                others if self in source.without_click else inputs,
                (tf.size(bags.row_splits, tf.int64) - 1)
                // len(self._sets.columns),
                insert is not False,
                error,
            )
        its_bags = self._sets.split(bags)
        plans = plan_tables(
            self.tables, its_bags, its_clicks, regime.exchange.shares_rows
        )
        return Prepared(its_bags, plans, hashed.masks, error)

    def _take(self, give: Give, inputs: _Inputs) -> typing.Any:
        """The outputs, of embeddings that are given."""
        if self.cvm:
            raise ValueError(
                f"Layer {self.name!r} has cvm=True, and cannot be split from "
                "its tables: the statistics of ids are not among the rows of "
                "a key-value store. Use tf_ext.serving.export."
            )
        outputs = []
        for table, columns in zip(self.tables, self._columns):
            given = {c: give(table, c, inputs) for c in columns}
            masks = {c: one.mask for c, one in given.items() if c.has_mask}
            outputs.append(
                self._arrange(
                    [([c], one.output) for c, one in given.items()], masks
                )
            )
        return self._structured(outputs)

    def _structured(self, outputs: Iterable[typing.Any]) -> typing.Any:
        """The layer's output, of those of its tables."""
        by_name = {t.name: one for t, one in zip(self.tables, outputs)}
        return by_name if self._several else by_name[self.tables[0].name]

    def _pull(
        self, regime: Regime, prepared: Prepared, insert: _Flag
    ) -> list[tuple[tf.Tensor, tf.Tensor | None, PullPlan, Bags]]:
        """Rows for each table: a list of (rows, statistics, plan, bags)."""
        requests = [
            PullRequest(
                table,
                plan,
                insert if table.trainable else False,
                cvm_numbers.COUNT if self.cvm else 0,
            )
            for table, plan in zip(self.tables, prepared.plans)
        ]
        rows = pull_differentiable(
            regime, requests, self.trainable, prepared.error
        )
        return [
            (*pulled, request.plan, one.bags)
            for pulled, request, one in zip(rows, requests, prepared.bags)
        ]

    def _combine(
        self,
        rows: tf.Tensor,
        statistics: tf.Tensor | None,
        columns: Sequence[Column],
        plan: PullPlan,
        bags: Bags,
        masks: Mapping[Column, tf.Tensor],
    ) -> tf.Tensor | dict[str, tf.Tensor]:
        combined = combine(rows, plan.inverse, bags, columns, masks)
        if statistics is not None:
            combined = cvm_numbers.append(
                combined,
                cvm_numbers.numbers(statistics, plan.inverse, bags, columns),
            )
        return self._arrange(combined, masks)

    def _arrange(
        self,
        combined: Iterable[tuple[Sequence[Column], tf.Tensor]],
        masks: Mapping[Column, tf.Tensor],
    ) -> tf.Tensor | dict[str, tf.Tensor]:
        """A table's output, of those of columns that stand side by side."""
        outputs = [
            (run, tf.cast(output, self.compute_dtype))
            for run, output in combined
        ]
        if self.concatenate:
            tensors = [output for _, output in outputs]
            return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 1)
        named = {}
        for run, output in outputs:
            for column, piece in zip(run, _split(output, len(run))):
                if column.has_mask:
                    keras_masks.set_keras_mask(piece, masks[column])
                named[column.name] = piece
        return named

    def _outputs(
        self,
        make: Callable[[tuple[int | None, ...], Column | None], typing.Any],
    ) -> typing.Any:
        """The structure of outputs, of `make(shape, column)`.

        The shape is without the batch size; the column is None where several
        are concatenated.
        """
        outputs: list[typing.Any] = []
        for table, columns in zip(self.tables, self._columns):
            shapes: dict[Column, typing.Any]
            dim = table.dim + (cvm_numbers.COUNT if self.cvm else 0)
            shapes = {c: c.output_shape(dim) for c in columns}
            if self.concatenate:
                width = sum(width for [width] in shapes.values())
                outputs.append(make((width,), None))
            else:
                outputs.append({c.name: make(s, c) for c, s in shapes.items()})
        return self._structured(outputs)

    def compute_mask(
        self, inputs: _Inputs, previous_mask: typing.Any = None
    ) -> typing.Any:
        """The masks of sequences, which Keras takes from the outputs.

        It is for code that has the features, but not the outputs.

        Args:
          inputs: dict of features by key.
          previous_mask: is not used.

        Returns:
          A structure like that of the outputs with `concatenate=False`, of
          bool `[batch_size, length]`, or None for other outputs than padded
          sequences; None if no column is one.
        """
        del previous_mask
        wanted = [c for c in self._sets.columns if c.has_mask]
        if not wanted:
            return None
        elsewhere = batch_source().hashed
        masks = hash_inputs(self.name, wanted, inputs, elsewhere, False).masks
        return self._structured(
            {c.name: masks[c] if c.has_mask else None for c in columns}
            for columns in self._columns
        )

    def compute_output_spec(
        self, inputs: _Inputs, training: _Flag | None = None
    ) -> typing.Any:
        """The outputs' shapes for Keras 3's functional models.

        Raises:
          ValueError: an input is missing, or of a type that its column does
            not take.
        """
        hashed = find_hashed(
            self.name, self._sets.columns, inputs, batch_source().hashed
        )
        if hashed is None:
            for column in self._sets.columns:
                column.check(inputs)
        tensors = tf.nest.flatten(inputs)
        batch = tensors[0].shape[0] if tensors else None

        def spec(
            shape: tuple[int | None, ...], column: Column | None
        ) -> typing.Any:
            if column is None:
                return keras.KerasTensor((batch, *shape), self.compute_dtype)
            entry = {} if hashed is None else hashed[identity_of(column)]
            shape = column.symbolic_shape(shape, inputs, entry.get("mask"))
            made = keras.KerasTensor(
                (batch, *shape), self.compute_dtype, ragged=column.ragged
            )
            if column.has_mask:
                keras_masks.set_symbolic_mask(made)
            return made

        return self._outputs(spec)

    def compute_output_shape(self, input_shape: _Inputs) -> typing.Any:
        """The outputs' shapes, from a dict of the inputs'."""
        shapes = list(input_shape.values())
        batch = shapes[0][0] if shapes else None
        return self._outputs(lambda shape, _: (batch, *shape))

    def count_params(self) -> int:
        """As in Keras, without tables, whose rows are no parameters."""
        return shadow.count_without(super().count_params(), self.tables)

    def get_config(self) -> dict[str, typing.Any]:
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
            "click": self.click,
            "cvm": self.cvm,
        }

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The layer that `get_config` describes, on new, empty tables.

        Layers that shared a table share a new one if the same call of Keras
        makes them: `load_model` or `clone_model`.
        """
        config = dict(config)
        config.pop("autocast", None)
        deserialize = keras.utils.deserialize_keras_object
        tables = [
            cloning.copy_for(
                table["config"]["uid"],
                functools.partial(SparseTable.from_config, table["config"]),
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


def _split(output: tf.Tensor, count: int) -> list[tf.Tensor]:
    return [output] if count == 1 else tf.split(output, count, axis=1)


def _as_flag(training: _Flag | None, trainable: bool) -> _Flag:
    if not trainable or training is None:
        return False
    return training if tf.is_tensor(training) else bool(training)
