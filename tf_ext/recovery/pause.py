# SPDX-License-Identifier: Apache-2.0
"""How a callback waits for the steps that are under way at once."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class Pause:
    """What a loop and a callback tell each other between steps.

    Attributes:
      under_way: int, steps that have begun and of whose ends callbacks have not
        been told, and 1 if a step waits for its lost worker; set by the loop.
      then: function that the loop calls once when none is under way, or None.
        No step begins before that. It is set by the callback.
    """

    under_way: int = 0
    then: Callable[[], None] | None = None

    def holds(self) -> bool:
        """Whether no step may begin; calls `then` if none is under way."""
        if self.then is None:
            return False
        if self.under_way:
            return True
        then, self.then = self.then, None
        then()
        return False
