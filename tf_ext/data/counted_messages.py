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
        self._batched: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    def begin(self, positions: Mapping[str, Position]) -> None:
        """Told where an iteration begins.

        Where nothing is known of a position, its messages count as new.
        """
        for name, position in positions.items():
            number = self._number_at(name, position)
            if number is None:
                number = self._counted.get(name, 0)
                self._keep(name, position, number)
            self._read[name] = self._batched[name] = number

    def new(self, partition: str, count: int) -> int:
        """How many of the messages that are read next come for the first time.

        They are the last ones of `count`, and have been counted now.
        """
        end = self._read.get(partition, 0) + count
        new = max(0, min(count, end - self._counted.get(partition, 0)))
        self._read[partition] = end
        self._counted[partition] = max(end, self._counted.get(partition, 0))
        return new

    def end_batch(
        self, positions: Mapping[str, Position], messages: Mapping[str, int]
    ) -> None:
        """Told of a batch: the positions behind it, and how many it has."""
        for name, position in positions.items():
            number = self._batched.get(name, 0) + messages.get(name, 0)
            self._batched[name] = number
            self._keep(name, position, number)

    def _keep(self, name: str, position: Position, number: int) -> None:
        ends = self._ends.setdefault(name, collections.deque(maxlen=_BATCHES))
        ends.append((position, number))

    def _number_at(self, name: str, position: Position) -> int | None:
        for place, number in reversed(self._ends.get(name, ())):
            if place == position:
                return number
        return None
