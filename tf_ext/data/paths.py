# SPDX-License-Identifier: Apache-2.0
"""Fields of objects within objects, named by their path: `user.geo.country`.

A field whose whole name a record has is that one.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None

_Tree: typing.TypeAlias = dict[str, typing.Any]


def steps_of(name: str) -> list[str]:
    """The names on the way to a field; of most fields its own alone."""
    steps = name.split(".")
    return steps if all(steps) else [name]


def roots_of(name: str) -> list[str]:
    """The columns that a field may be in, by its name or by its path."""
    return [*dict.fromkeys([name, steps_of(name)[0]])]


def conflicts(names: Iterable[str]) -> list[str]:
    """The names of fields that others' paths lead through, as objects."""
    whole = set(names)
    through = {
        ".".join(steps[:count])
        for steps in map(steps_of, whole)
        for count in range(1, len(steps))
    }
    return sorted(whole & through)


def schema_of(types: Mapping[str, typing.Any]) -> typing.Any:
    """The schema of records that have fields by their names or their paths.

    Args:
      types: dict from names of fields to types of Arrow.
    """
    tree: _Tree = {}
    for name, type_ in types.items():
        tree[name] = type_
        [*parents, last] = steps_of(name)
        if parents:
            place = tree
            for step in parents:
                place = place.setdefault(step, {})
            place[last] = type_
    return pa.schema(_fields(tree))


def _fields(tree: _Tree) -> list[tuple[str, typing.Any]]:
    return [
        (name, pa.struct(_fields(type_)) if isinstance(type_, dict) else type_)
        for name, type_ in tree.items()
    ]


def column_of(table: typing.Any, name: str) -> typing.Any:
    """A field's column in a table of `schema_of`, as one array."""
    whole = table[name].combine_chunks()
    [first, *steps] = steps_of(name)
    if not steps or not whole.null_count:
        return whole
    nested = pc.struct_field(table[first].combine_chunks(), steps)
    if whole.null_count == len(whole):
        return nested
    return pc.if_else(whole.is_valid(), whole, nested)


def value_of(record: Mapping[str, typing.Any], name: str) -> typing.Any:
    """A field's value in a record; None if it has none.

    Raises:
      TypeError: there is something else than an object on the way.
    """
    if record.get(name) is not None:
        return record[name]
    value: typing.Any = record
    for step in steps_of(name):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{step!r} is looked for in no object.")
        value = value.get(step)
    return value


def type_at(schema: typing.Any, name: str) -> typing.Any:
    """The type of a field in a schema of Arrow; None if it has none."""
    steps: Sequence[str] = steps_of(name)
    if schema.get_field_index(name) >= 0:
        return schema.field(name).type
    if schema.get_field_index(steps[0]) < 0:
        return None
    found = schema.field(steps[0]).type
    for step in steps[1:]:
        if not pa.types.is_struct(found) or found.get_field_index(step) < 0:
            return None
        found = found.field(step).type
    return found
