# SPDX-License-Identifier: Apache-2.0
"""What the policies of tables have in common: admission and eviction."""

import typing

from tf_ext._checks import refuse
from tf_ext._keras import keras


class Policy:
    """Base class of policies, which Keras can serialize."""

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """Creates a policy from the result of `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = (f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({', '.join(arguments)})"


_AnyPolicy = typing.TypeVar("_AnyPolicy", bound=Policy)


def get(
    kind: type[_AnyPolicy],
    argument: str,
    allowed: str,
    identifier: _AnyPolicy | dict[str, typing.Any] | None,
) -> _AnyPolicy | None:
    """Converts an argument of SparseTable to a policy.

    Args:
      kind: the base class of the policies.
      argument: string, the argument's name.
      allowed: string, what the argument must be, for the error.
      identifier: a policy, a dict in which Keras serialized one, or None.

    Returns:
      A policy, or None.

    Raises:
      ValueError: if `identifier` is anything else.
    """
    if isinstance(identifier, dict):
        identifier = keras.utils.deserialize_keras_object(identifier)
    if identifier is None or isinstance(identifier, kind):
        return identifier
    refuse("SparseTable", argument, allowed, identifier)
