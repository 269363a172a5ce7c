# SPDX-License-Identifier: Apache-2.0
"""Versions of rows in Redis."""

import contextlib
import dataclasses
import json
import secrets
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_ext._sorted import find_sorted
from tf_ext.serving.sinks import redis_state as states
from tf_ext.serving.sinks.redis_rows import (
    RedisRows,
    bytes_of,
    fields_of,
)
from tf_ext.serving.sinks.redis_state import Layer, State
from tf_ext.serving.sinks.sink import (
    FoundRows,
    Manifest,
    Rows,
    Signs,
    Sink,
    SinkConflictError,
    SinkError,
    TableChanges,
    Versions,
    check_base,
    check_selectable,
)

_OWNER = "RedisSink"
# Rows of a transaction, for which others wait: milliseconds.
_ROWS = 4096
_NONE = np.empty(0, np.int64)


class _Writing(typing.NamedTuple):
    """A version that is written; as a list, the value of the key `writing`."""

    writer: str
    version: int
    tables: list[str]


class RedisSink(Sink):
    """Versions of rows in Redis, for `tf_ext.serving.publish`.

    All keys begin with `{tf_ext:NAME}:`. `state`, JSON, says which version is
    current, and which hashes have the rows of each: `rows:VERSION:TABLE`, from
    signs (int64, 8 bytes, little-endian) to rows as the manifest's `dtype`
    says. `manifest:VERSION` is JSON, and `files:VERSION` a hash of the files of
    the dense part. Readers ask for state and rows in one transaction.

    A version adds a hash with what has changed. When no retained version needs
    the one below it alone, it is folded into that: a row takes its place once,
    and those of the last `keep` versions once more. Where deltas do not go back
    to the current version, all rows are compared with those that are there.

    It works with `maxmemory-policy noeviction` alone: other policies may remove
    rows that are served.

    It needs redis-py: `pip install 'tf-ext[redis]'`.

    Args:
      url: string, as `redis.Redis.from_url` takes it: `redis://host:port/0`,
        `rediss://` with TLS, or `unix://`. `?socket_timeout=5` has a store that
        does not answer in that time count as away (60 seconds).
      name: string, which tells it from others in the same Redis.
      keep: int, how many versions are retained, the current one included.

    Example:
      >>> sink = tf_ext.serving.RedisSink("redis://localhost:6379/0", "ads")
      >>> sink.keep
      3
    """

    def __init__(self, url: str, name: str, keep: int = 3) -> None:
        super().__init__(keep)
        self._rows = RedisRows(_OWNER, url, name)
        self._where = self._rows.where
        # Such that a writer that began later has a higher one.
        self._token = f"{time.time_ns():020d}-{secrets.token_hex(8)}"
        self._has_written = False

    def versions(self) -> Versions:
        """The versions that can be read."""
        return self._rows.state().versions

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version that is retained."""
        return self._rows.manifest(version)

    def read_file(self, version: int, name: str) -> bytes:
        """The contents of a file of a version."""
        return self._rows.read_file(version, name)

    def read_rows(
        self, version: int, table: str
    ) -> Iterator[tuple[Signs, Rows]]:
        """Reads all rows of a table in a version, each once."""
        return self._rows.read_rows(version, table)

    def find_rows(
        self, manifest: Manifest, signs: Mapping[str, Signs]
    ) -> dict[str, FoundRows]:
        """Finds rows of a version, in one round trip."""
        return self._rows.find_rows(manifest, signs)

    def changed_signs(
        self, before: Manifest, after: Manifest, most: int
    ) -> dict[str, Signs] | None:
        """The signs whose rows differ in two versions, if there are few."""
        return self._rows.changed_signs(before, after, most)

    def select(self, version: int, pinned: bool) -> None:
        """Makes a retained version the current one, in one atomic step."""

        def change(state: State) -> State:
            check_selectable(_OWNER, state.versions, version)
            return dataclasses.replace(state, current=version, pinned=pinned)

        self._change(change)

    def write(
        self,
        manifest: Manifest,
        files: Mapping[str, bytes],
        tables: Sequence[TableChanges],
        base: int,
    ) -> int:
        """Writes a version, which then is the current one."""
        names = [table.name for table in tables]
        state, version = self._begin(names, base)
        try:
            # Tables that there were have no rows from now on.
            new = {
                name: Layer(version, version, True)
                for name in state.tables.keys() - set(names)
            }
            for table in tables:
                layer = self._write_table(table, state, version)
                if layer is not None:
                    new[table.name] = layer
            members: dict[str | bytes, bytes] = dict(files.items())
            if members:
                key = self._rows.key("files", version)
                self._set(version, key, _flat(members.items()))
            whole = {**manifest, "version": version}
            self._commit(version, whole, new, base)
        except BaseException:
            # What was written takes memory that others need.
            with contextlib.suppress(SinkError):
                self._abandon(version, names)
            raise
        # Else the next `write` begins with it.
        with contextlib.suppress(SinkError):
            self._fold()
        return version

    def _begin(self, tables: Sequence[str], base: int) -> tuple[State, int]:
        """Becomes the writer; returns the state and the version's number."""
        if not self._has_written:
            self._rows.check_policy()
        # First what a full Redis allows, as it may be full of that.
        self._rows.transaction(self._clean, "state", "writing")
        if self._has_written:
            self._fold()

        def begin(pipe: typing.Any) -> State:
            state = self._check_begin(pipe)
            check_base(state.versions, base, self._where)
            writing = self._writing(pipe)
            if writing is not None and writing.writer == self._token:
                pipe.multi()  # It has begun, and the answer was lost.
                return state
            if writing is not None:
                raise SinkError(
                    "Another publisher has begun to write at the same time."
                )
            state = dataclasses.replace(
                state, writer=self._token, last=state.last + 1
            )
            writing = _Writing(self._token, state.last, list(tables))
            pipe.multi()
            pipe.set(self._rows.key("state"), states.encode(state))
            pipe.set(self._rows.key("writing"), json.dumps(writing))
            return state

        state = self._rows.transaction(begin, "state", "writing")
        self._has_written = True
        return state, state.last

    def _check_begin(self, pipe: typing.Any) -> State:
        """The state, unless another one writes that began later."""
        state = self._rows.state_in(pipe)
        if self._has_written and state.writer > self._token:
            raise self._conflict()
        return state

    def _clean(self, pipe: typing.Any) -> None:
        """Removes a version that was begun; if that is still written, it fails.

        Args:
          pipe: pipeline of a transaction.
        """
        self._check_begin(pipe)
        writing = self._writing(pipe)
        pipe.multi()
        if writing is not None:
            pipe.unlink(self._rows.key("writing"), *self._begun(writing))

    def _abandon(self, version: int, tables: Sequence[str]) -> None:
        """Removes what was written of a version, unless it was committed."""
        mine = _Writing(self._token, version, list(tables))

        def abandon(pipe: typing.Any) -> None:
            state = self._rows.state_in(pipe)
            writing = self._writing(pipe)
            pipe.multi()
            if writing == mine:
                pipe.unlink(self._rows.key("writing"))
            elif writing is not None and writing.version == version:
                return  # As Redis has lost what it had, numbers are new.
            if version not in state.ids:
                pipe.unlink(*self._begun(mine))

        self._rows.transaction(abandon, "state", "writing")

    def _begun(self, writing: "_Writing") -> list[str]:
        """The keys that a version has before it is committed."""
        rows = [
            self._rows.rows_key(writing.version, name)
            for name in writing.tables
        ]
        return [self._rows.key("files", writing.version), *rows]

    def _write_table(
        self, table: TableChanges, state: State, version: int
    ) -> Layer | None:
        """Writes the changes of a table; returns the layer with them."""
        key = self._rows.rows_key(version, table.name)
        below = state.layers_of(state.current, table.name)
        if table.whole and not below:
            for part in table.parts():
                self._put(version, key, part.signs, part.rows)
            return Layer(version, version, True)
        if table.whole:
            changes = self._difference(table, below)
        else:
            changes = ((p.signs, p.rows, p.erased) for p in table.parts())
        written = 0
        for signs, rows, erased in changes:
            self._put(version, key, signs, rows)
            empty = np.empty([len(erased), 0], np.uint8)
            self._put(version, key, erased, empty)
            written += len(signs) + len(erased)
        return Layer(version, version, False) if written else None

    def _difference(
        self, table: TableChanges, below: Sequence[Layer]
    ) -> Iterator[tuple[Signs, Rows, Signs]]:
        """How all rows of a table differ from those that are there."""
        # Of each row its hash, of 64 bits that differ in each process.
        parts = [
            (signs, np.fromiter(map(hash, rows), np.int64, len(rows)))
            for signs, rows in self._rows.parts(table.name, below)
        ]
        signs = np.concatenate([part[0] for part in parts] or [_NONE])
        hashes = np.concatenate([part[1] for part in parts] or [_NONE])
        del parts
        order = np.argsort(signs)
        signs, hashes = signs[order], hashes[order]
        is_left = np.ones(len(signs), bool)
        for part in table.parts():
            rows = bytes_of(part.rows)
            found = np.fromiter(map(hash, rows), np.int64, len(rows))
            places, there = find_sorted(signs, part.signs)
            is_left[places[there]] = False
            same = there
            same[there] = hashes[places[there]] == found[there]
            yield part.signs[~same], part.rows[~same], _NONE
        yield _NONE, np.empty([0, table.width], np.uint8), signs[is_left]

    def _put(self, version: int, key: str, signs: Signs, rows: Rows) -> None:
        """Adds rows to the hash of a version."""
        for begin in range(0, len(signs), _ROWS):
            some = slice(begin, begin + _ROWS)
            pairs = zip(
                fields_of(signs[some]), bytes_of(rows[some]), strict=True
            )
            self._set(version, key, _flat(pairs))

    def _set(self, version: int, key: str, pairs: Sequence[object]) -> None:
        """Sets fields of a hash, if the version is still written.

        As one transaction: a Redis that did not answer for some time executes
        late what it was sent, when the version may have been given up.
        """

        def run(pipe: typing.Any) -> None:
            state = self._rows.state_in(pipe)
            self._check_writing(pipe, version, state)
            pipe.multi()
            pipe.execute_command("HSET", key, *pairs)

        self._rows.transaction(run, "state", "writing")

    def _commit(
        self,
        version: int,
        manifest: Manifest,
        new: dict[str, Layer],
        base: int,
    ) -> None:
        id = secrets.token_hex(16)
        text = json.dumps({**manifest, "id": id}, ensure_ascii=False)

        def commit(pipe: typing.Any) -> None:
            before = self._rows.state_in(pipe)
            if before.ids.get(version) == id:
                pipe.multi()  # It was committed, and the answer was lost.
                return
            self._check_writing(pipe, version, before)
            check_base(before.versions, base, self._where)
            state = before.committed(version, id, new, self.keep)
            pipe.multi()
            pipe.set(self._rows.key("manifest", version), text)
            pipe.set(self._rows.key("state"), states.encode(state))
            pipe.unlink(self._rows.key("writing"), *self._unused(before, state))

        self._rows.transaction(commit, "state", "writing")

    def _unused(self, before: State, after: State) -> list[str]:
        """The keys of one state that the next one does not have."""
        return [
            self._rows.key(kind, version)
            for version in before.ids.keys() - after.ids.keys()
            for kind in ("manifest", "files")
        ] + [
            self._rows.rows_key(layer.key, table)
            for table, layers in before.tables.items()
            for layer in layers
            if layer.key not in [x.key for x in after.tables.get(table, [])]
        ]

    def _fold(self) -> None:
        """Adds layers that nobody needs apart to those below them."""
        while True:
            state = self._rows.state()
            found = state.foldable()
            if found is None:
                return
            table, lower, upper = found
            for rows in self._rows.scan(table, upper):
                self._move(self._rows.rows_key(lower.key, table), rows)

            def fold(pipe: typing.Any, found: typing.Any = found) -> None:
                before = self._rows.state_in(pipe)
                self._check_writer(before)
                pipe.multi()
                if before.foldable() != found:
                    return  # It was folded, and the answer was lost.
                after = before.folded(found[0])
                pipe.set(self._rows.key("state"), states.encode(after))
                pipe.unlink(*self._unused(before, after))

            self._rows.transaction(fold, "state")

    def _move(self, key: str, rows: Mapping[bytes, bytes]) -> None:
        """Changes rows of the lowest layer, as long as this is the writer."""
        kept = [(sign, row) for sign, row in rows.items() if row]
        erased = [sign for sign, row in rows.items() if not row]

        def move(pipe: typing.Any) -> None:
            self._check_writer(self._rows.state_in(pipe))
            pipe.multi()
            for begin in range(0, len(kept), _ROWS):
                pairs = kept[begin : begin + _ROWS]
                pipe.execute_command("HSET", key, *_flat(pairs))
            if erased:
                pipe.hdel(key, *erased)

        self._rows.transaction(move, "state")

    def _change(self, change: Callable[[State], State]) -> None:
        def run(pipe: typing.Any) -> None:
            state = change(self._rows.state_in(pipe))
            pipe.multi()
            pipe.set(self._rows.key("state"), states.encode(state))

        self._rows.transaction(run, "state")

    def _check_writer(self, state: State) -> None:
        if state.writer > self._token:
            raise self._conflict()
        if state.writer != self._token:
            raise SinkError(f"{self._where} has lost what was written last.")

    def _check_writing(
        self, pipe: typing.Any, version: int, state: State
    ) -> None:
        self._check_writer(state)
        writing = self._writing(pipe)
        if writing is None or writing[:2] != (self._token, version):
            raise SinkError(
                f"{self._where} has lost version {version}, which was written, "
                "or another publisher has removed it."
            )

    def _writing(self, pipe: typing.Any) -> "_Writing | None":
        """What the key `writing` says, in a transaction."""
        data = pipe.get(self._rows.key("writing"))
        try:
            return None if data is None else _Writing(*json.loads(data))
        except (TypeError, ValueError) as error:
            raise SinkError(
                f"What {self._where} says of the version that is written is "
                f"damaged: {error}"
            ) from None

    def _conflict(self) -> SinkConflictError:
        return SinkConflictError(
            f"Another publisher has begun to write to {self._where} since, and "
            "takes precedence. A name must have one writer at a time: stop the "
            "job that should no longer run, or use a name of its own for each."
        )


def _flat(pairs: typing.Iterable[tuple[object, object]]) -> list[object]:
    return [one for pair in pairs for one in pair]
