# SPDX-License-Identifier: Apache-2.0
"""How tables with admission by count number their occurrences.

Needs no TensorFlow, so that snapshots can be read without it.
"""

import dataclasses
import re

from tf_ext.snapshot.sealed_json import INT64_MAX

_INTEGER = re.compile("[1-9][0-9]{0,18}")
_MAX_N = 255


@dataclasses.dataclass(frozen=True)
class Counting:
    """The parameters of `tf_ext.admission.Count`.

    n: the occurrences that an id needs; forget: the steps in a period, 0 if
    nothing is forgotten.
    """

    n: int
    forget: int

    @property
    def last_period(self) -> int:
        """The period of the last possible step."""
        return INT64_MAX // self.forget if self.forget else 0

    def can_take(self, saved: "Counting | None") -> bool:
        """Whether counters of a saved table mean something in this one.

        With another `forget`, periods are others, so it is not known which
        counters would have been forgotten.
        """
        return saved is not None and self.forget in (0, saved.forget)


def entries_of(config: str) -> dict[str, str]:
    """The entries of a table's configuration text."""
    return dict(
        line.split("=", 1) for line in config.splitlines() if "=" in line
    )


def counting_of(config: str) -> Counting | None:
    """The Counting of a table's configuration; None without admission by count.

    Raises:
      ValueError: if a table cannot have this configuration.
    """
    entries = entries_of(config)
    if entries.get("admission") != "count":
        return None
    n = _integer(entries, "admission.n", _MAX_N)
    if "admission.forget" not in entries:
        return Counting(n, 0)
    return Counting(n, _integer(entries, "admission.forget", INT64_MAX))


def _integer(entries: dict[str, str], key: str, most: int) -> int:
    text = entries.get(key, "")
    if not _INTEGER.fullmatch(text) or int(text) > most:
        raise ValueError(
            f"`{key}` must be an integer from 1 to {most}, but is {text!r}."
        )
    return int(text)
