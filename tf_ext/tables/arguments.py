# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `SparseTable`."""

import typing
from collections.abc import Mapping, Sequence

import numpy.typing as npt
import tensorflow as tf

from tf_ext import eviction as policies
from tf_ext._checks import refuse


def check_dtypes(dtype: object, slot_dtype: object) -> None:
    """Raises ValueError unless rows can be stored in these types."""
    for name, value, allowed in (
        ("dtype", dtype, ("float32", "float16", "bfloat16")),
        ("slot_dtype", slot_dtype, ("float32", "bfloat16")),
    ):
        if not isinstance(value, str) or value not in allowed:
            what = " or ".join(map(repr, allowed))
            refuse(
                "SparseTable",
                name,
                f"{what}, the type of stored values: tables compute in float32 "
                "under any policy",
                value,
            )


def statistics_list(names: Sequence[str] | None) -> list[str]:
    """The argument `statistics`, as a list."""
    fields = [] if names is None else names
    for allowed in ([], ["show"], ["show", "click"]):
        if isinstance(fields, list | tuple) and list(fields) == allowed:
            return allowed
    refuse(
        "SparseTable",
        "statistics",
        '["show"], ["show", "click"] or None',
        names,
    )


def one_gradient_each(signs: tf.Tensor, gradients: typing.Any) -> tf.Tensor:
    """Gradients as float32; InvalidArgumentError unless one for each sign."""
    gradients = tf.convert_to_tensor(gradients, tf.float32)
    both = gradients.shape.rank and signs.shape.rank == 1
    if both and not signs.shape[:1].is_compatible_with(gradients.shape[:1]):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "gradients must have one row for each of the "
            f"{signs.shape[0]} signs of SparseTable.push, but their shape is "
            f"{gradients.shape}. Pass them in the order of the signs.",
        )
    return gradients


def policy_for(
    name: str, eviction: policies.Policy | None, statistics: Sequence[str]
) -> policies.Policy | None:
    """The argument `eviction` of a table with a name and statistics."""
    policy = policies.get(eviction)
    if policy is not None:
        policy.check(name, policy.last_seen, len(statistics))
    return policy


def fields_to_set(
    fields: Mapping[str, tf.Tensor | npt.ArrayLike],
) -> dict[str, tf.Tensor]:
    """The argument `fields` of `import_rows`; float64, NumPy's, is rounded."""
    if not isinstance(fields, Mapping):
        shape = getattr(fields, "shape", None)
        found = fields if shape is None else f"of shape {tuple(shape)}"
        allowed = (
            "a dict from names of fields to arrays [n, count], such as "
            '{"weights": ...}'
        )
        refuse("SparseTable.import_rows", "fields", allowed, found)
    values = {key: tf.convert_to_tensor(one) for key, one in fields.items()}
    return {
        key: tf.cast(one, tf.float32) if one.dtype == tf.float64 else one
        for key, one in values.items()
    }
