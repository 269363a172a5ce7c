# SPDX-License-Identifier: Apache-2.0
"""Which rows fit which tables, by the configurations of both."""

from tf_ext.tables.shard import parse_config
from tf_ext.tables.weights_only import (
    NOT_SERVED,
    STATISTICS,
    holds_weights_only,
)

# Keys of a table's configuration that may differ between the saved rows and
# the table they are restored into. All others must be equal.
_NOT_IDENTITY = ("name", "optimizer.initial_accumulator_value")

# Prefixes of keys that concern signs without a row, and so may differ, too.
_NOT_OF_ROWS = ("admission", "unknown")

# Prefixes of the keys that determine a row's initial values and its slots.
# They may differ where only the weights of the saved rows are restored.
_NOT_OF_WEIGHTS = (
    "seed",
    "initializer",
    "optimizer",
    "last_seen",
    "statistics",
    "slot_dtype",
)

# The types of weights and slots, between which `load` can convert.
_DTYPES = ("dtype", "slot_dtype")

# What a configuration does not say if it is so.
_DEFAULTS = {"slot_dtype": "float32"}


def check_identity(
    label: str,
    config: str,
    saved: str,
    weights_only: bool,
    convert: bool = False,
) -> None:
    """Raises unless rows of a table of `saved` fit a table of `config`.

    Args:
      label: string, the table's name, for the message.
      config: string, the table's configuration.
      saved: string, the configuration of the table that was saved.
      weights_only: bool, whether seed, initializer and optimizer may differ.
      convert: bool, whether the types of weights and slots may differ.

    Raises:
      ValueError: the message names the first key that differs.
    """
    mine = _DEFAULTS | parse_config(config)
    theirs = _DEFAULTS | parse_config(saved)
    served = holds_weights_only(config)
    for key in sorted(mine.keys() | theirs.keys()):
        kind = key.partition(".")[0]
        if key in _NOT_IDENTITY or kind in _NOT_OF_ROWS:
            continue
        may_differ = kind in _NOT_OF_WEIGHTS
        if (weights_only and may_differ) or (convert and key in _DTYPES):
            continue
        # Only tables of layers that read statistics have these.
        reads_it = key == STATISTICS and key in mine
        if served and kind in NOT_SERVED and not reads_it:
            continue
        if mine.get(key) != theirs.get(key):
            raise ValueError(
                f"Rows cannot be restored into table {label!r}: its `{key}` "
                f"is {mine.get(key)!r}, that of the saved rows is "
                f"{theirs.get(key)!r}. Make the table as it was saved"
                f"{_other_way(key, may_differ)}"
            )


def _other_way(key: str, may_differ: bool) -> str:
    """The end of an error's last sentence: what can be done instead."""
    if key in _DTYPES:
        what, option = "round the values", "convert"
    elif may_differ:
        what, option = "take the weights alone", "weights_only"
    else:
        return "."
    return (
        f", or {what}: save(path) of that table, load(path, {option}=True) of "
        "this one."
    )
