# SPDX-License-Identifier: Apache-2.0
"""Reads versions of rows in Redis."""

import contextlib
import itertools
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_ext import _core
from tf_ext._checks import refuse
from tf_ext.serving.sinks import redis_state as states
from tf_ext.serving.sinks.redis_state import Layer, State
from tf_ext.serving.sinks.sink import (
    FoundRows,
    Manifest,
    Rows,
    Signs,
    SinkError,
)

try:
    import redis
    import redis.backoff
    import redis.retry
except ImportError:
    redis = None

_NAME = re.compile(r"[\w.:/-]{1,200}")
# Of a round trip of HSCAN.
_ROWS = 4096
# How often rows are read again when versions come and go meanwhile.
_ATTEMPTS = 20
# Seconds, unless the address says otherwise.
_TIMEOUTS = {"socket_timeout": 60.0, "socket_connect_timeout": 5.0}

_T = typing.TypeVar("_T")


class _Asked(typing.NamedTuple):
    """The state, and its bytes, with which rows were asked for last."""

    data: bytes | None
    state: State


class RedisRows:
    """What is under a name in a Redis; docs of `RedisSink` have the keys.

    Args:
      owner: string, the class whose arguments these are.
      url: see `RedisSink`.
      name: see `RedisSink`.

    Attributes:
      where: string, for messages.
      redis: the client.
    """

    def __init__(self, owner: str, url: str, name: str) -> None:
        if redis is None:
            raise ImportError(
                f"tf_ext.serving.{owner} needs redis-py: pip install "
                "'tf-ext[redis]'"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = "1 to 200 letters, digits and characters of _.:/-"
            refuse(owner, "name", allowed, name)
        try:
            # Connections that have ended while they were not used are made
            # again; whoever calls waits for a store that is away.
            retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
            self.redis = redis.Redis.from_url(
                url, decode_responses=False, retry=retry, **_TIMEOUTS
            )
        except (AttributeError, TypeError, ValueError) as error:
            refuse(owner, "url", f"an address of Redis: {error}", url)
        self.where = f"{name!r} in Redis"
        self._prefix = f"{{tf_ext:{name}}}:"
        self._asked: _Asked | None = None

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version that is retained."""
        with self.errors():
            data = self.redis.get(self.key("manifest", version))
        if data is None:
            raise self._removed(version)
        try:
            return dict(json.loads(data))
        except ValueError as error:
            raise SinkError(
                f"The manifest of version {version} of {self.where} is "
                f"damaged: {error}"
            ) from None

    def read_file(self, version: int, name: str) -> bytes:
        """The contents of a file of a version."""
        with self.errors():
            data = self.redis.hget(self.key("files", version), name)
        if data is None:
            raise SinkError(
                f"Version {version} of {self.where} has no file {name!r}."
            )
        return bytes(data)

    def read_rows(
        self, version: int, table: str
    ) -> Iterator[tuple[Signs, Rows]]:
        """Reads all rows of a table in a version, each once."""
        state = self.state()
        if version not in state.ids:
            raise self._removed(version)
        for signs, values in self.parts(table, state.layers_of(version, table)):
            # As long as a version is retained, nothing that it has is changed.
            if state.ids[version] != self.state().ids.get(version):
                raise self._removed(version)
            if values:
                yield signs, self._to_rows(table, values)

    def find_rows(
        self, manifest: Manifest, signs: Mapping[str, Signs]
    ) -> dict[str, FoundRows]:
        """Finds rows of a version, in one round trip unless it moves."""
        version, id = manifest["version"], manifest["id"]
        asked = self._asked or self._read_asked()
        fields = {table: fields_of(its) for table, its in signs.items()}
        for _ in range(_ATTEMPTS):
            state = asked.state
            if state.ids.get(version) != id:
                before, asked = asked, self._read_asked()
                if asked == before:
                    raise self._removed(version)
                continue
            layers = [
                (table, layer)
                for table in signs
                for layer in state.layers_of(version, table)
                if fields[table]
            ]
            with self.errors(), self.redis.pipeline(transaction=True) as pipe:
                pipe.get(self.key("state"))
                for table, layer in layers:
                    key = self.rows_key(layer.key, table)
                    pipe.hmget(key, fields[table])
                data, *values = pipe.execute()
            if data == asked.data:
                return self._found(signs, layers, values)
            # Rows may have moved between layers.
            asked = self._asked = _Asked(data, self.decoded(data))
        raise SinkError(f"{self.where} changes faster than rows are read.")

    def changed_signs(
        self, before: Manifest, after: Manifest, most: int
    ) -> dict[str, Signs] | None:
        """The signs whose rows differ in two versions, if there are few."""
        state = self.state()
        between = _between(state, before, after)
        if between is None:
            return None
        signs: dict[str, list[Signs]] = {}
        for table, layer in between:
            for found in self.scan(table, layer):
                signs.setdefault(table, []).append(signs_of(list(found)))
                most -= len(found)
                if most < 0:
                    return None
        if _between(self.state(), before, after) != between:
            return None  # Rows may have moved between layers meanwhile.
        return {table: np.concatenate(its) for table, its in signs.items()}

    def _read_asked(self) -> "_Asked":
        with self.errors():
            data = self.redis.get(self.key("state"))
        self._asked = _Asked(data, self.decoded(data))
        return self._asked

    def _found(
        self,
        signs: Mapping[str, Signs],
        layers: Sequence[tuple[str, Layer]],
        values: Sequence[list[bytes | None]],
    ) -> dict[str, FoundRows]:
        """What the layers of tables, the newest first, have together."""
        settled: dict[str, list[bytes | None]] = {}
        for (table, _), found in zip(layers, values, strict=True):
            above = settled.get(table)
            if above is not None:
                # Empty values are of erased rows.
                found = [
                    new if old is None else old
                    for old, new in zip(above, found, strict=True)
                ]
            settled[table] = found
        result = {}
        for table, its in signs.items():
            rows = settled.get(table, [None] * len(its))
            there = np.fromiter(map(bool, rows), bool, len(rows))
            kept = [row for row in rows if row]
            result[table] = FoundRows(self._to_rows(table, kept), there)
        return result

    def parts(
        self, table: str, layers: Sequence[Layer]
    ) -> Iterator[tuple[Signs, list[bytes]]]:
        """Reads the rows of layers, each sign once.

        Args:
          table: string.
          layers: list of Layer, the newest first.

        Yields:
          `(signs [n], rows)`.
        """
        settled = _core.SignSet()
        for layer in layers:
            for found in self.scan(table, layer):
                signs, values = signs_of(list(found)), list(found.values())
                new = settled.add_from_the_end(signs)
                if not (new.all() and all(values)):
                    new &= np.fromiter(map(bool, values), bool, len(values))
                    values = list(itertools.compress(values, new))
                yield signs[new], values

    def scan(self, table: str, layer: Layer) -> Iterator[dict[bytes, bytes]]:
        """Reads a layer in parts."""
        key, cursor = self.rows_key(layer.key, table), 0
        while True:
            with self.errors():
                cursor, found = self.redis.hscan(key, cursor, count=_ROWS)
            if found:
                yield found
            if not int(cursor):
                return

    def _to_rows(self, table: str, values: Sequence[bytes]) -> Rows:
        [width, *others] = {*map(len, values)} or {0}
        if others:
            raise SinkError(
                f"{self.where} is damaged: rows of {table} have {width} and "
                f"{others[0]} bytes."
            )
        rows = np.frombuffer(b"".join(values), np.uint8)
        return rows.reshape(len(values), width)

    def state(self) -> State:
        """The state; that of nothing if there is none."""
        with self.errors():
            return self.state_in(self.redis)

    def state_in(self, client: typing.Any) -> State:
        """The state, as a client or the pipeline of a transaction reads it.

        A transaction needs the errors of Redis as they are, to run again.
        """
        return self.decoded(client.get(self.key("state")))

    def decoded(self, data: bytes | None) -> State:
        """The state of these bytes."""
        return states.decode(data, f"The state of {self.where}")

    def transaction(self, run: Callable[[typing.Any], _T], *watched: str) -> _T:
        """Runs a function of a pipeline, again where a key changed meanwhile.

        Args:
          run: function that reads, calls `multi`, adds commands and returns.
          *watched: strings, kinds of keys.
        """
        keys = [self.key(kind) for kind in watched]
        with self.errors():
            return typing.cast(
                _T,
                self.redis.transaction(run, *keys, value_from_callable=True),
            )

    def _removed(self, version: int) -> SinkError:
        return SinkError(
            f"Version {version} of {self.where} is not retained, or was "
            "removed while it was read."
        )

    def check_policy(self) -> None:
        """Raises SinkError if Redis may remove rows when it is full."""
        with self.errors():
            about = self.redis.info("memory")
        policy = str(about.get("maxmemory_policy"))
        if about.get("maxmemory") and policy.startswith("allkeys"):
            raise SinkError(
                f"Redis has `maxmemory-policy {policy}`, and so may remove "
                f"rows that are served. Set it to noeviction for {self.where}."
            )

    def key(self, kind: str, version: int | None = None) -> str:
        """The name of a key."""
        return self._prefix + (kind if version is None else f"{kind}:{version}")

    def rows_key(self, version: int, table: str) -> str:
        """The name of the hash that a version has begun."""
        return f"{self.key('rows', version)}:{table}"

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises errors of Redis as SinkError."""
        try:
            yield
        except redis.RedisError as error:
            raise SinkError(f"{self.where}: {error}") from error


def _between(
    state: State, before: Manifest, after: Manifest
) -> list[tuple[str, Layer]] | None:
    """The layers that one of two versions has on top of the other's."""
    if any(state.ids.get(v["version"]) != v["id"] for v in (before, after)):
        return None
    between = []
    for table in state.tables:
        less, more = sorted(
            (state.layers_of(v["version"], table) for v in (before, after)),
            key=len,
        )
        if more[len(more) - len(less) :] != less or not less:
            return None
        between += [(table, layer) for layer in more[: len(more) - len(less)]]
    return between


def fields_of(signs: Signs) -> list[bytes]:
    """Signs as the fields of hashes."""
    return bytes_of(
        np.ascontiguousarray(signs, "<i8").view(np.uint8).reshape(-1, 8)
    )


def signs_of(fields: Sequence[bytes]) -> Signs:
    """The inverse of `fields_of`."""
    return np.frombuffer(b"".join(fields), "<i8").astype(np.int64)


def bytes_of(rows: Rows) -> list[bytes]:
    """The bytes of each row, uint8 `[n, width]`."""
    count, width = rows.shape
    if not width:
        return [b""] * count
    flat = np.ascontiguousarray(rows).view(f"V{width}").reshape(count)
    return typing.cast(list[bytes], flat.tolist())
