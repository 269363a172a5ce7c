# SPDX-License-Identifier: Apache-2.0
"""Ops that others replace where TensorFlow's own alone are allowed."""

import functools
import typing
from collections.abc import Callable

from tf_ext._batch_source import batch_source

_Op = typing.TypeVar("_Op", bound=Callable[..., typing.Any])


def or_stock(stock: Callable[..., typing.Any]) -> Callable[[_Op], _Op]:
    """Makes an op trace stock ops where the source of the batch wants them.

    Args:
      stock: function of the same arguments, which takes the op's place.
    """

    def decorate(op: _Op) -> _Op:
        @functools.wraps(op)
        def chosen(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            call = op if batch_source().lookup is None else stock
            return call(*args, **kwargs)

        return typing.cast(_Op, chosen)

    return decorate
