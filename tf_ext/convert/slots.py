# SPDX-License-Identifier: Apache-2.0
"""The slots of Keras's optimizers, and the fields of rows that they become."""

import typing
from collections.abc import Collection, Sequence

import tensorflow as tf

from tf_ext._compat.optimizers import (
    counter_of,
    excludes_from_decay,
    index_of,
    slots_of,
)
from tf_ext._keras import keras, tf_variable
from tf_ext.snapshot.compatibility import lost_weights
from tf_ext.tables.sparse_optimizers import SparseAdam, SparseOptimizer, get
from tf_ext.tables.sparse_table import SparseTable

# What the model's optimizer does for tables, too.
_OF_MODEL = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
# A field of rows -> the slot of Keras's optimizers.
SLOTS = {
    "accumulator": "accumulators",
    "average_gradient": "average_gradients",
    "linear": "linears",
    "m": "momentums",
    "momentum": "momentums",
    "v": "velocities",
    "velocity": "velocities",
}
# The field with the number of a row's updates.
_STEP = "step"


def unwrapped(optimizer: typing.Any) -> typing.Any:
    """The optimizer inside of a LossScaleOptimizer, or the same."""
    scaling = keras.mixed_precision.LossScaleOptimizer
    if isinstance(optimizer, scaling):
        return optimizer.inner_optimizer
    return optimizer


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """How many steps an optimizer has made."""
    return int(tf.convert_to_tensor(optimizer.iterations))


def rule_of(optimizer: keras.optimizers.Optimizer, dim: int) -> SparseOptimizer:
    """The first of `rule_and_l2`."""
    return rule_and_l2(optimizer, dim)[0]


def rule_and_l2(
    optimizer: keras.optimizers.Optimizer, dim: int
) -> tuple[SparseOptimizer, float]:
    """The rule that trains rows as a model's optimizer does, and their `l2`.

    Args:
      optimizer: keras.optimizers.Optimizer. Of Adam, rows also move while they
        are absent from batches; with betas for which there is no such rule,
        they do not.
      dim: int, of the table.

    Raises:
      ValueError: no rule has its formula.
    """
    config = optimizer.get_config()
    if any(config.get(name) for name in _OF_MODEL):
        config |= dict.fromkeys(set(_OF_MODEL) & config.keys())
        optimizer = type(optimizer).from_config(config)
    rule = get(optimizer, dim)
    if not isinstance(rule, SparseAdam):
        return rule, 0.0
    numbers = rule.learning_rate, rule.beta_1, rule.beta_2, rule.epsilon
    try:
        dense = SparseAdam(*numbers, rule.bias_correction, absent="decay")
    except ValueError:
        return rule, 0.0
    return dense, rule.weight_decay or 0.0


def rule_like(
    table: SparseTable, optimizer: keras.optimizers.Optimizer
) -> SparseOptimizer | None:
    """The rule with an optimizer's formula, if it is that of a table's rule."""
    try:
        rule = rule_of(optimizer, table.dim)
    except ValueError:
        return None
    return rule if type(rule) is type(table.optimizer) else None


def notes_of_iterations(table: SparseTable, step: int | None) -> list[str]:
    """Who has to know the steps that moments of Adam come from, if anybody.

    Args:
      table: SparseTable that has taken the moments.
      step: int, the number of steps; None if it is not known.
    """
    rule = table.optimizer
    is_global = (
        isinstance(rule, SparseAdam) and rule.bias_correction == "global"
    )
    if not is_global or step == 0:
        return []
    count = "their number of steps" if step is None else step
    return [
        f"Table {table.name!r} corrects the bias of m and v by the iterations "
        "of its model's optimizer. Before the model trains on, "
        f"`model.optimizer.iterations` must be {count}."
    ]


def notes_of_weights(table: SparseTable, taken: Collection[str]) -> list[str]:
    """What is to be said of weights whose slots are not taken.

    Args:
      table: SparseTable, which gets them.
      taken: the names of the fields that are taken, too.

    Returns:
      List of strings.
    """
    lost = lost_weights(table.name, table.rows.names, taken)
    return [lost] if lost else []


class RowSlots:
    """Slots of a variable whose rows become those of a table.

    The table takes over how many steps they come from, if its rule counts them
    for all rows.

    Args:
      optimizer: keras.optimizers.Optimizer that trains it; None for new slots.
      variable: `[n, dim]`.
      table: SparseTable.

    Attributes:
      names: tuple of strings, the fields of rows that are taken.
      note: string, why there are none; "" if there are, or the rule needs none.
    """

    def __init__(
        self,
        optimizer: typing.Any,
        variable: typing.Any,
        table: SparseTable,
    ) -> None:
        self._variables: dict[str, typing.Any] = {}
        self._step = 0
        wanted = [name for name, _, _ in table.optimizer.slots(table.dim)]
        self.note = self._find(optimizer, variable, table, wanted)
        is_taken = optimizer is not None and not self.note
        self.names = tuple(wanted) if is_taken else ()
        self._factors: dict[str, float] = {}
        if "m" in self.names:
            self._factors = table.rows.take_adam_step(steps_of(optimizer))

    def _find(
        self,
        optimizer: typing.Any,
        variable: typing.Any,
        table: SparseTable,
        wanted: Sequence[str],
    ) -> str:
        if optimizer is None or not wanted:
            return ""
        fresh = (
            f"The slots of table {table.name!r} start from their initial "
            "values: "
        )
        if rule_like(table, optimizer) is None:
            mine = type(table.optimizer).__name__
            theirs = type(optimizer).__name__
            return f"{fresh}its rule is {mine}, the model's {theirs}."
        place = index_of(optimizer, variable)
        if place is None:
            return f"{fresh}the optimizer has not trained the layer yet."
        found = slots_of(optimizer)
        for name in wanted:
            if name == _STEP:
                self._step = steps_of(optimizer)
                continue
            self._variables[name] = found[SLOTS[name]][place]
        return ""

    def gather(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        """The fields of some rows.

        Args:
          rows: int64 `[n]`.

        Returns:
          Dict of `[n, count]`, as of `SparseTable.import_rows`.
        """
        fields = {
            name: gather(variable, rows)
            for name, variable in self._variables.items()
        }
        for name, factor in self._factors.items():
            fields[name] *= factor
        if _STEP in self.names:
            shape = tf.stack([tf.size(rows), 1])
            fields[_STEP] = tf.fill(shape, tf.cast(self._step, tf.int32))
        return fields


def gather(variable: typing.Any, rows: tf.Tensor) -> tf.Tensor:
    """Rows of a variable, without a copy of all of it."""
    return tf.cast(tf.gather(tf_variable(variable), rows), tf.float32)


def copy_slots(
    source: keras.optimizers.Optimizer,
    target: keras.optimizers.Optimizer,
    pairs: Sequence[tuple[typing.Any, typing.Any]],
) -> list[str]:
    """Copies the state of an optimizer to one of the same class.

    The number of steps is copied, not of batches: the gradients of those since
    the last step, which `gradient_accumulation_steps` adds up, are left out.

    Args:
      source: the optimizer; if it has not been built, nothing is copied.
      target: an optimizer that has been built.
      pairs: list of `(variable of source, variable of target)`.

    Returns:
      List of sentences: what was left out.
    """
    theirs, mine = slots_of(source), slots_of(target)
    for before, after in pairs:
        found, place = index_of(source, before), index_of(target, after)
        if found is None or place is None:
            continue
        for name in theirs.keys() & mine.keys():
            copy_value(theirs[name][found], mine[name][place])
    rest = [_without_slots(*one) for one in ((source, theirs), (target, mine))]
    if len(rest[0]) == len(rest[1]):
        for before, after in zip(*rest):
            copy_value(before, after)
    steps = steps_of(source) * _batches_of_step(target)
    counter_of(target).assign(steps)
    notes = []
    summed = int(tf.convert_to_tensor(counter_of(source)))
    if batches := summed % _batches_of_step(source):
        notes.append(note_of_batches(batches))
    if excludes_from_decay(source):
        notes.append(
            "All variables have weight decay: what `exclude_from_weight_decay` "
            "of the optimizer left out is unknown to its configuration."
        )
    return notes


def _batches_of_step(optimizer: keras.optimizers.Optimizer) -> int:
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def note_of_batches(batches: int) -> str:
    """Of batches that were trained on since the last step."""
    return (
        f"The gradients of {batches} batches, which the optimizer has added up "
        "for its next step (`gradient_accumulation_steps`), are left out."
    )


def _without_slots(
    optimizer: typing.Any, slots: dict[str, list[typing.Any]]
) -> list[typing.Any]:
    """An optimizer's other variables, such as the number of steps."""
    known = {id(one) for several in slots.values() for one in several}
    return [
        one
        for one in optimizer.variables
        if id(one) not in known and len(one.shape) == 0
    ]


def copy_value(source: typing.Any, target: typing.Any) -> None:
    """Assigns a variable, or None of both, to another."""
    if source is not None and target is not None:
        target.assign(tf.convert_to_tensor(source))
