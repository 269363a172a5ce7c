# SPDX-License-Identifier: Apache-2.0
"""Which messages of a stream have been counted."""

import collections
from collections.abc import Mapping

from tf_ext.data.source import Position

# Batches ago that an iteration may begin again, for its messages to be known.
_BATCHES = 10_000


class CountedMessages:
    """Tells messages that are read again from those that come first.

    An iteration begins behind what was trained on, which is before what others
    have read ahead. Positions have no order, so those behind the last batches
    are kept, each with the number of messages before it.
    """

    def __init__(self) -> None:
        # By partition, as all that follow: of each batch, the position behind
        # it and the number of messages before that.
        self._ends: dict[str, collections.deque[tuple[Position, int]]] = {}
        # Messages before the next batch, before what is read next, and counted.
        self._batched: collections.Counter[str] = collections.Counter()
        self._read: collections.Counter[str] = collections.Counter()
        self._counted: collections.Counter[str] = collections.Counter()

    def begin(self, positions: Mapping[str, Position]) -> None:
        """Told where an iteration begins.

        Where nothing is known of a position, its messages count as new.
        """
        for name, position in positions.items():
            number = self._number_at(name, position)
            if number is None:
                number = self._counted[name]
                self._keep(name, position, number)
            self._read[name] = self._batched[name] = number

    def new(self, partition: str, count: int) -> int:
        """How many of the messages that are read next come for the first time.

        They are the last ones of `count`, and have been counted now.
        """
        self._read[partition] += count
        beyond = max(0, self._read[partition] - self._counted[partition])
        self._counted[partition] += beyond
        return beyond

    def end_batch(
        self, positions: Mapping[str, Position], messages: Mapping[str, int]
    ) -> None:
        """Told of a batch: the positions behind it, and how many it has."""
        for name, position in positions.items():
            self._batched[name] += messages.get(name, 0)
            self._keep(name, position, self._batched[name])

    def _keep(self, name: str, position: Position, number: int) -> None:
        ends = self._ends.setdefault(name, collections.deque(maxlen=_BATCHES))
        ends.append((position, number))

    def _number_at(self, name: str, position: Position) -> int | None:
        for place, number in reversed(self._ends.get(name, ())):
            if place == position:
                return number
        return None
