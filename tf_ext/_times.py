# SPDX-License-Identifier: Apache-2.0
"""The numbers that columns of times hash; needs no TensorFlow."""

import typing

MINUTES_OF_DAY = 24 * 60
# What is hashed of a missing time, and left out.
MISSING_TIME = -1
# Of two times within these bounds, the difference does not overflow.
FAR = 1 << 61


class Unit(typing.NamedTuple):
    """What is counted: `(minutes since 1970 // minutes + first) mod period`."""

    minutes: int
    period: int
    first: int


# 1970 began on a Thursday; weeks begin on Mondays, as in Python's `weekday`.
UNITS = {
    "hour": Unit(60, 24, 0),
    "weekday": Unit(MINUTES_OF_DAY, 7, 3),
    "hour_of_week": Unit(60, 7 * 24, 3 * 24),
}
