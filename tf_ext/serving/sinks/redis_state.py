# SPDX-License-Identifier: Apache-2.0
"""What a Redis knows of the versions in it: one value, which is one state.

The rows of a table are in layers, hashes from signs to rows: one with all rows,
and above it one for each version that has changed some. A reader of a version
asks its layers from the newest one on. An empty value is an erased row. So a
version is visible, and a rollback is done, when this state is replaced.
"""

import dataclasses
import json
import typing

from tf_ext.serving.sinks.sink import SinkError, Versions

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Layer:
    """A hash of rows.

    version: int, the last version whose rows are in it; key: int, the version
    that began it, and names it; whole: bool, whether none lies below it.
    """

    version: int
    key: int
    whole: bool


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a name in a Redis.

    writer: string, the token of the sink that writes; last: int, the highest
    number of a version, written or not; ids: `{version: id}` of those that are
    retained, in ascending order; tables: `{table: its layers, the lowest
    first}`.
    """

    writer: str = ""
    last: int = 0
    current: int = 0
    pinned: bool = False
    ids: dict[int, str] = dataclasses.field(default_factory=dict)
    tables: dict[str, list[Layer]] = dataclasses.field(default_factory=dict)

    @property
    def versions(self) -> Versions:
        """The versions, as sinks return them."""
        return Versions(self.current, tuple(self.ids), self.pinned)

    def layers_of(self, version: int, table: str) -> list[Layer]:
        """The layers that have a table's rows of a version, newest first."""
        found: list[Layer] = []
        for layer in reversed(self.tables.get(table, [])):
            if layer.version <= version:
                found.append(layer)
                if layer.whole:
                    break
        return found

    def committed(
        self, version: int, id: str, new: dict[str, Layer], keep: int
    ) -> "State":
        """The state with one more version, and only `keep` of all.

        Args:
          version: int.
          id: string, its id.
          new: `{table: Layer}` that it adds.
          keep: int.
        """
        retained = [v for v in self.ids if v <= self.current]
        ids = {v: self.ids[v] for v in retained} | {version: id}
        for old in list(ids)[:-keep]:
            del ids[old]
        tables = {}
        for table in self.tables.keys() | new.keys():
            layers = [
                layer
                for layer in self.tables.get(table, [])
                if layer.version <= self.current
            ]
            layers += [new[table]] if table in new else []
            # Those below one with all rows that each reader finds first.
            begin = [
                place
                for place, layer in enumerate(layers)
                if layer.whole and layer.version <= min(ids)
            ]
            tables[table] = layers[begin[-1] if begin else 0 :]
        return dataclasses.replace(
            self, current=version, ids=ids, tables=tables
        )

    def foldable(self) -> tuple[str, Layer, Layer] | None:
        """A table, and two layers of which no reader needs the lower alone."""
        for table, layers in self.tables.items():
            if len(layers) > 1 and not layers[1].whole:
                if layers[1].version <= min(self.ids):
                    return table, layers[0], layers[1]
        return None

    def folded(self, table: str) -> "State":
        """The state after that was done: the second layer is in the first."""
        lower, upper, *rest = self.tables[table]
        both = dataclasses.replace(lower, version=upper.version)
        return dataclasses.replace(
            self, tables=self.tables | {table: [both, *rest]}
        )


def encode(state: State) -> bytes:
    """The bytes of a state."""
    members = dataclasses.asdict(state) | {
        "format": _FORMAT,
        "tables": {
            table: [dataclasses.astuple(layer) for layer in layers]
            for table, layers in state.tables.items()
        },
    }
    return json.dumps(members).encode()


def decode(data: bytes | None, where: str) -> State:
    """The inverse of `encode`; the state of nothing for None.

    Raises:
      SinkError: the bytes are not those of a state.
    """
    if data is None:
        return State()
    try:
        members = json.loads(data)
        found = members.pop("format")
        if found == _FORMAT:
            return _of_members(members)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SinkError(f"{where} is damaged: {error!r}.") from None
    raise SinkError(
        f"{where} is of format {found!r}; this version of tf_ext reads format "
        f"{_FORMAT}."
    )


def _of_members(members: dict[str, typing.Any]) -> State:
    ids = {int(version): id for version, id in members.pop("ids").items()}
    tables = {
        table: [
            Layer(int(version), int(key), bool(whole))
            for version, key, whole in layers
        ]
        for table, layers in members.pop("tables").items()
    }
    state = State(**members, ids=ids, tables=tables)
    if not isinstance(state.last, int) or not (
        state.current in ids or (state.current == 0 and not ids)
    ):
        raise ValueError(f"its current version is {state.current!r}")
    return state
