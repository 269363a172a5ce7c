# SPDX-License-Identifier: Apache-2.0
"""Questions to sources that may not answer for a while."""

import logging
import time
import typing
from collections.abc import Callable

from tf_ext.data.errors import SourceUnavailableError

_LOG = logging.getLogger("tf_ext")
# For how long it is asked again, and after how long.
_MOST_SECONDS = 60.0
_PAUSE_SECONDS = 0.5

_T = typing.TypeVar("_T")


def always() -> bool:
    """Goes on."""
    return True


def when_available(
    ask: Callable[..., _T],
    *args: typing.Any,
    goes_on: Callable[[], bool] = always,
) -> _T:
    """Asks a source, again for a minute while it is not available.

    Consumers wait by themselves, without a limit: they have read before. What a
    stream asks first may be at a wrong address.

    Args:
      ask: function of the source.
      *args: its arguments.
      goes_on: function that tells whether it is still to be asked.

    Returns:
      What `ask` returns.

    Raises:
      tf_ext.data.SourceUnavailableError: it was not available all the time.
    """
    end = time.monotonic() + _MOST_SECONDS
    said = False
    while True:
        try:
            return ask(*args)
        except SourceUnavailableError as error:
            if time.monotonic() >= end or not goes_on():
                raise
            if not said:
                _LOG.warning(
                    "A stream's source is asked again for %.0f seconds: %s",
                    *(_MOST_SECONDS, error.message),
                )
                said = True
        time.sleep(_PAUSE_SECONDS)
