# SPDX-License-Identifier: Apache-2.0
"""The order of the records of a dataset."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import typing
from collections.abc import Callable, Generator, Iterator

import numpy as np
import numpy.typing as npt

from tf_ext.data.epochs import Epoch
from tf_ext.data.errors import BlockErrors, ReadErrors
from tf_ext.data.formats import Reader
from tf_ext.data.parts import Parsed, Part, concat


class Window(typing.NamedTuple):
    """Records, and the order of their rows in batches."""

    part: Part
    order: npt.NDArray[np.int64]


def _in_order(part: Part) -> Window:
    return Window(part, np.arange(part.rows))


@dataclasses.dataclass
class Passes:
    """What an iteration of the dataset reads.

    `files` are what the reader is asked for, each by its name.
    """

    reader: Reader
    files: list[str]
    batch_size: int
    shuffle: int | None
    seed: int
    repeat: bool
    max_errors: float
    errors: ReadErrors
    threads: int
    epoch: Epoch = dataclasses.field(default_factory=Epoch)

    def __post_init__(self) -> None:
        self._malformed = BlockErrors(self.errors, self.max_errors)

    def windows(self) -> Generator[Window, None, None]:
        """Yields windows; all but a pass's last one are of whole batches."""
        for number in itertools.count(self.epoch.number):
            some = False
            for window in self._of_pass(number):
                some = True
                yield window
            self._malformed.check()
            if not (self.repeat and some):
                return

    def _of_pass(self, number: int) -> Iterator[Window]:
        rng = np.random.default_rng((self.seed, number))
        files = self.files
        if self.shuffle is not None:
            files = [files[i] for i in rng.permutation(len(files))]
        batches = -(-(self.shuffle or 1) // self.batch_size)
        wanted = batches * self.batch_size
        waiting: list[Part] = []
        rows = 0
        with contextlib.closing(self._parts(files)) as parts:
            for part in parts:
                waiting.append(part)
                rows += part.rows
                if rows < wanted:
                    continue
                cut = rows - rows % self.batch_size
                last = part.rows - (rows - cut)
                # Without the last part there are fewer than `wanted`: it
                # alone has rows of later batches.
                waiting[-1] = part.slice(0, last)
                yield from self._cut(waiting, rng)
                rows -= cut
                waiting = [part.slice(last, part.rows)]
        if rows:
            yield from self._cut(waiting, rng)

    def _cut(
        self, parts: list[Part], rng: np.random.Generator
    ) -> Iterator[Window]:
        """Yields parts as one window, or as few as copy little."""
        parts = [part for part in parts if part.rows] or parts[:1]
        if self.shuffle is not None:
            whole = concat(parts)
            yield Window(whole, rng.permutation(whole.rows))
            return
        first = sum(part.rows for part in parts[:-1])
        # A batch that begins in earlier parts and ends in the last one.
        head = -first % self.batch_size
        if not first or head >= parts[-1].rows:
            yield _in_order(concat(parts))
            return
        last = parts[-1]
        begin = last.slice(0, head)
        yield _in_order(concat([*parts[:-1], begin]))
        yield _in_order(last.slice(head, last.rows))

    def _parts(self, files: list[str]) -> Generator[Part, None, None]:
        """Yields the well-formed records of files, block by block, in order."""
        blocks = (
            (file, index, parse)
            for file in files
            for index, parse in enumerate(self.reader.blocks(file))
        )
        with contextlib.closing(_ordered(blocks, self.threads)) as parsed:
            for file, index, block in parsed:
                self._malformed.add(
                    *(file, index, block.records, block.malformed, block.unit)
                )
                yield block.part


def _ordered(
    blocks: Iterator[tuple[str, int, Callable[[], Parsed]]], threads: int
) -> Generator[tuple[str, int, Parsed], None, None]:
    """Parses blocks by threads; yields them in order."""
    ahead: collections.deque[typing.Any] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads) as executor:
        try:
            for file, index, parse in blocks:
                ahead.append((file, index, executor.submit(parse)))
                if len(ahead) > threads:
                    first = ahead.popleft()
                    yield (*first[:2], first[2].result())
            while ahead:
                first = ahead.popleft()
                yield (*first[:2], first[2].result())
        finally:
            for _, _, future in ahead:
                future.cancel()
