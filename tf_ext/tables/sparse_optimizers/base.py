# SPDX-License-Identifier: Apache-2.0
"""The base of the update rules of tables: learning rate and weight decay."""

import functools
import inspect
import json
import logging
import math
import typing

import tensorflow as tf

from tf_ext import _core
from tf_ext._checks import is_finite
from tf_ext._keras import keras

_LOG = logging.getLogger("tf_ext")
_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule

LearningRate: typing.TypeAlias = (
    float
    | keras.optimizers.schedules.LearningRateSchedule
    | dict[str, typing.Any]
    | None
)
"""A rule's own learning rate; a dict is a schedule that Keras serialized."""


@functools.cache
def _spec(rule: str) -> dict[str, typing.Any]:
    """The core's description of a rule: see cc/core/rules/rule_spec.h."""
    return _core.update_rule(rule)


def _allowed(limits: dict[str, typing.Any]) -> str:
    """The range of a number in words, such as ">= 0.0 and < 1.0"."""
    bounds = []
    if math.isfinite(limits["low"]):
        sign = ">=" if limits["low_allowed"] else ">"
        bounds.append(f"{sign} {limits['low']}")
    if math.isfinite(limits["high"]):
        sign = "<=" if limits["high_allowed"] else "<"
        bounds.append(f"{sign} {limits['high']}")
    return " and ".join(bounds)


def _holds(limits: dict[str, typing.Any], value: typing.Any) -> bool:
    low, high = limits["low"], limits["high"]
    return (
        is_finite(value)
        and (value >= low if limits["low_allowed"] else value > low)
        and (value <= high if limits["high_allowed"] else value < high)
    )


class SparseOptimizer:
    """Base of the update rules.

    Args:
      learning_rate: float, which is scaled by the relative change of the model
        optimizer's learning rate (see `tf_ext.optimizers.Optimizer`); a
        `keras.optimizers.schedules.LearningRateSchedule` (evaluated at the
        model optimizer's `iterations`, or at the number of batches if that
        accumulates gradients, as in Keras); or None to use the model
        optimizer's learning rate at each step.
      weight_decay: float or None. If set, `w -= w * weight_decay *
        learning_rate` is applied to pushed rows before the rule.
    """

    # The core's name of the rule.
    _rule = ""

    def __init__(
        self,
        learning_rate: LearningRate = None,
        weight_decay: float | None = None,
    ) -> None:
        self._variable: typing.Any = None
        if isinstance(learning_rate, dict):
            learning_rate = keras.optimizers.schedules.deserialize(
                learning_rate
            )
        if learning_rate is not None and not isinstance(
            learning_rate, _SCHEDULE
        ):
            learning_rate = self._check("learning_rate", learning_rate)
        self._learning_rate = learning_rate
        self._first_learning_rate = learning_rate
        self.weight_decay = (
            None
            if weight_decay is None
            else self._check("weight_decay", weight_decay)
        )

    @property
    def moves_absent_rows(self) -> bool:
        """Whether it moves rows that are absent from batches, too."""
        return False

    def _set(self, **numbers: float) -> None:
        """Sets arguments of the rule as attributes, after checking them."""
        for name, value in numbers.items():
            setattr(self, name, self._check(name, value))

    def _check(self, name: str, value: typing.Any) -> float:
        """Returns the number as a float; raises unless the core allows it."""
        spec = _spec(self._rule)
        (limits,) = (
            entry["range"]
            for entry in (*spec["hyperparameters"], *spec["identity"])
            if entry["name"] == name
        )
        if not _holds(limits, value):
            raise ValueError(
                f"Argument `{name}` of {type(self).__name__} must be a finite "
                f"number {_allowed(limits)}. Received: {name}={value!r}"
            )
        return float(value)

    @property
    def learning_rate(self) -> LearningRate:
        """The rule's own learning rate: a float, a schedule, or None.

        A float does not include the factor by which the model optimizer's
        learning rate has changed. Assigning a float takes effect at the next
        step, also in compiled functions. It raises TypeError if the learning
        rate is None or a schedule.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self._learning_rate is None or isinstance(
            self._learning_rate, _SCHEDULE
        ):
            kind = (
                "follows the model optimizer's (assign that one)"
                if self._learning_rate is None
                else "is a schedule"
            )
            raise TypeError(
                f"The learning rate of this {type(self).__name__} cannot be "
                f"assigned: it {kind}. Construct it with a float instead."
            )
        self._learning_rate = self._check("learning_rate", value)
        if self._variable is not None:
            self._variable.assign(self._learning_rate)

    def current_learning_rate(
        self,
        iterations: tf.Tensor,
        model_learning_rate: float | tf.Tensor | None,
        factor: float | tf.Tensor = 1.0,
    ) -> tf.Tensor:
        """The learning rate of a step, a float64 scalar tensor.

        Args:
          iterations: int64 scalar tensor, at which a schedule is evaluated.
          model_learning_rate: scalar tensor, the model optimizer's learning
            rate.
          factor: float64 scalar tensor, the factor by which that has changed;
            used if the rule's own learning rate is a float.
        """
        rate, is_scaled = self.base_learning_rate(
            iterations, model_learning_rate
        )
        return rate * tf.cast(factor, tf.float64) if is_scaled else rate

    def base_learning_rate(
        self,
        iterations: tf.Tensor,
        model_learning_rate: float | tf.Tensor | None,
    ) -> tuple[tf.Tensor, bool]:
        """The learning rate of a step, before the factor.

        Args:
          iterations: as of `current_learning_rate`, like the following.
          model_learning_rate: scalar tensor.

        Returns:
          `(rate, is_scaled)`: float64 scalar tensor, and whether the factor
          applies to it.
        """
        if self._learning_rate is None:
            rate = model_learning_rate
        elif isinstance(self._learning_rate, _SCHEDULE):
            rate = self._learning_rate(iterations)
        else:
            if self._variable is None:
                with tf.init_scope():
                    # float64, so that a value such as 0.1 is rounded to
                    # float32 only once, by the rule.
                    self._variable = tf.Variable(
                        self._learning_rate, trainable=False, dtype=tf.float64
                    )
            return tf.convert_to_tensor(self._variable), True
        return tf.cast(tf.convert_to_tensor(rate), tf.float64), False

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        """The rule with the hyperparameters that its name selects: see `get`.

        Args:
          dim: int, the number of weights in a row.

        Returns:
          A `SparseOptimizer`.
        """
        raise NotImplementedError

    def _rule_in_force(self) -> str:
        """The core's name of the rule with these hyperparameters."""
        return self._rule

    def _value(self, name: str) -> typing.Any:
        """The value of the core's hyperparameter or identity key `name`."""
        return getattr(self, name)

    def table_config(self) -> dict[str, str]:
        """The entries of a table's configuration, as a dict of strings."""
        rule = self._rule_in_force()
        entries = {"optimizer": rule}
        for key in _spec(rule)["identity"]:
            value = self._value(key["name"])
            if key["texts"] is None:
                value = repr(value)
            elif not isinstance(value, str):
                value = key["texts"][bool(value)]
            entries[f"optimizer.{key['name']}"] = value
        return entries

    def slots(self, dim: int) -> list[tuple[str, tf.DType, int]]:
        """The fields of a row after its weights: [(name, dtype, count)]."""
        lines = [f"{key}={text}\n" for key, text in self.table_config().items()]
        return [
            (name, tf.as_dtype(dtype), count)
            for name, dtype, count in _core.update_rule_slots(
                "".join(lines), dim
            )
        ]

    def hyperparameters(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """The hyperparameters of a push: float64 `[count]`.

        Args:
          learning_rate: float64 scalar tensor.
        """
        pieces = [
            tf.reshape(learning_rate, [1])
            if value is None
            else tf.constant([value], tf.float64)
            for value in self.hyperparameter_values()
        ]
        return tf.concat(pieces, 0)

    def hyperparameter_values(self) -> list[float | None]:
        """The hyperparameters; None for the learning rate."""
        spec = _spec(self._rule_in_force())
        names = [entry["name"] for entry in spec["hyperparameters"]]
        # A weight decay of None is sent as 0.
        return [
            None if name == "learning_rate" else float(self._value(name) or 0)
            for name in names
        ]

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, which are attributes, too."""
        rate = self.learning_rate
        if isinstance(rate, _SCHEDULE):
            rate = keras.optimizers.schedules.serialize(rate)
        config = {"learning_rate": rate, "weight_decay": self.weight_decay}
        arguments = inspect.signature(type(self)).parameters.keys()
        return config | {
            name: getattr(self, name)
            for name in arguments
            if name not in config
        }

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The rule that `get_config` describes."""
        return cls(**config)

    def state(self) -> str:
        """The state of the rule for checkpoints, as JSON text."""
        config = _plain(self.get_config())
        first = _plain({"learning_rate": self._first_learning_rate})
        return json.dumps({"config": config, "first": first}, sort_keys=True)

    def read_state(
        self, state: str
    ) -> tuple[dict[str, typing.Any], float | None]:
        """Parses and checks a state for `resume`, without changing anything.

        Args:
          state: JSON text, from `state`.

        Returns:
          `(configuration, learning rate to continue with, or None)`.

        Raises:
          ValueError: if the text was not written by `state`.
        """
        try:
            saved = json.loads(state)
            config, first = dict(saved["config"]), saved["first"]
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                "it is not a JSON object with the members `config` and `first` "
                f"of a {type(self).__name__} ({error})."
            ) from None
        mine = _plain({"learning_rate": self._first_learning_rate})
        if not isinstance(self._learning_rate, float) or first != mine:
            return config, None
        return config, self._check("learning_rate", config.get("learning_rate"))

    def resume(self, state: str, name: str) -> None:
        """Restores a state, and logs where this program differs from it.

        This program's hyperparameters take precedence. A learning rate that was
        assigned during training is restored if both programs started with the
        same one.

        Args:
          state: JSON text, from `state`.
          name: string, the table's name, for the log.
        """
        theirs, rate = self.read_state(state)
        if rate is not None:
            self.learning_rate = rate
        mine = _plain(self.get_config())
        for key in sorted(mine.keys() & theirs.keys()):
            if mine[key] != theirs[key]:
                _LOG.warning(
                    "Table %r continues with %s=%r; the saved rows were "
                    "trained with %r.",
                    name,
                    key,
                    mine[key],
                    theirs[key],
                )


def _plain(config: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """A configuration as it is after a round trip through JSON."""
    rate = config.get("learning_rate")
    if isinstance(rate, _SCHEDULE):
        rate = keras.optimizers.schedules.serialize(rate)
    return json.loads(json.dumps(config | {"learning_rate": rate}))
