"""The base of the update rules of tables: learning rate and weight decay."""

import json
import logging
import math

import numpy as np
import tensorflow as tf

from tf_ext._keras import keras

_LOG = logging.getLogger("tf_ext")
_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule


def _check(owner, name, value, low=0.0, below=None, exclude_low=False):
    """Raises unless `value` is a finite number in the range."""
    allowed = f"{'>' if exclude_low else '>='} {low}" + (
        f" and < {below}" if below is not None else ""
    )
    if (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > low if exclude_low else value >= low)
        and (below is None or value < below)
    ):
        return float(value)
    raise ValueError(
        f"Argument `{name}` of {owner} must be a finite number {allowed}. "
        f"Received: {name}={value!r}"
    )


class SparseOptimizer:
    """Base of the update rules.

    Args:
      learning_rate: float, which follows changes of the model optimizer's
        rate as a factor (see `tf_ext.optimizers.Optimizer`); a
        `keras.optimizers.schedules.LearningRateSchedule` (evaluated at the
        model optimizer's `iterations`); or None to take the model optimizer's
        learning rate at each step.
      weight_decay: float or None. If set, `w -= w * weight_decay *
        learning_rate` before the rule, on pushed rows only.
    """

    # The core's name of the rule, and whether it can divide by the rate.
    _rule = ""
    _positive_learning_rate = False

    def __init__(self, learning_rate=None, weight_decay=None):
        self._variable = None
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

    def _check(self, name, value, **limits):
        if name == "learning_rate":
            limits["exclude_low"] = self._positive_learning_rate
        return _check(type(self).__name__, name, value, **limits)

    @property
    def learning_rate(self):
        """The own rate (float), its schedule, or None.

        A float is the rate without the factor by which the model optimizer's
        rate has changed. Assigning one takes effect at the next step, in
        compiled functions too. A rate that is None or a schedule cannot be
        assigned.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
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
                f"assigned: it {kind}. Give it a float to begin with."
            )
        self._learning_rate = self._check("learning_rate", value)
        if self._variable is not None:
            self._variable.assign(self._learning_rate)

    def current_learning_rate(
        self, iterations, model_learning_rate, factor=1.0
    ):
        """The rate of a step, as a float64 scalar tensor.

        Args:
          iterations: int64 scalar tensor, steps made so far.
          model_learning_rate: scalar tensor, the model optimizer's rate.
          factor: float64 scalar tensor, how that rate has changed; for an own
            rate that is no schedule.
        """
        if self._learning_rate is None:
            rate = model_learning_rate
        elif isinstance(self._learning_rate, _SCHEDULE):
            rate = self._learning_rate(iterations)
        else:
            if self._variable is None:
                with tf.init_scope():
                    # float64, so that 0.1 is what the user wrote; the rules
                    # round it once.
                    self._variable = tf.Variable(
                        self._learning_rate, trainable=False, dtype=tf.float64
                    )
            rate = self._variable * factor
        return tf.cast(tf.convert_to_tensor(rate), tf.float64)

    def table_config(self):
        """The entries of a table's configuration, as a dict of strings."""
        return {"optimizer": self._rule}

    def slots(self, dim):
        """Fields of a row after its weights: (name, dtype, count) each."""
        raise NotImplementedError

    def _rest(self):
        """Hyperparameters after learning_rate and weight_decay, in order."""
        return []

    def hyperparameters(self, learning_rate):
        """What a push sends: float64 `[count]`.

        Args:
          learning_rate: float64 scalar tensor.
        """
        rest = [self.weight_decay or 0.0, *self._rest()]
        return tf.concat(
            [tf.reshape(learning_rate, [1]), tf.constant(rest, tf.float64)], 0
        )

    def get_config(self):
        """The constructor's arguments."""
        rate = self.learning_rate
        if isinstance(rate, _SCHEDULE):
            rate = keras.optimizers.schedules.serialize(rate)
        return {"learning_rate": rate, "weight_decay": self.weight_decay}

    @classmethod
    def from_config(cls, config):
        """The rule that `get_config` describes."""
        return cls(**config)

    def state(self):
        """What a checkpoint keeps of the rule: a JSON text."""
        config = _plain(self.get_config())
        first = _plain({"learning_rate": self._first_learning_rate})
        return json.dumps({"config": config, "first": first}, sort_keys=True)

    def read_state(self, state):
        """What `resume` will take up; nothing is changed.

        Args:
          state: JSON text, from `state`.

        Returns:
          `(configuration, learning rate to go on with, or None)`.

        Raises:
          ValueError: a text that `state` has not made.
        """
        try:
            saved = json.loads(state)
            config, first = dict(saved["config"]), saved["first"]
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                "it is no JSON object with the members `config` and `first` "
                f"of a {type(self).__name__} ({error})."
            ) from None
        mine = _plain({"learning_rate": self._first_learning_rate})
        if not isinstance(self._learning_rate, float) or first != mine:
            return config, None
        return config, self._check("learning_rate", config.get("learning_rate"))

    def resume(self, state, label):
        """Takes up a state, and logs where this program differs from it.

        This program's hyperparameters win. A learning rate that was assigned
        in the course of training goes on, if both programs began with the
        same one.

        Args:
          state: JSON text, from `state`.
          label: string, the table's name, for the log.
        """
        theirs, rate = self.read_state(state)
        if rate is not None:
            self.learning_rate = rate
        mine = _plain(self.get_config())
        for key in sorted(mine.keys() & theirs.keys()):
            if mine[key] != theirs[key]:
                _LOG.warning(
                    "Table %r goes on with %s=%r; the saved rows were trained "
                    "with %r.",
                    label,
                    key,
                    mine[key],
                    theirs[key],
                )


def _plain(config):
    """A configuration as JSON gives it back."""
    rate = config.get("learning_rate")
    if isinstance(rate, _SCHEDULE):
        rate = keras.optimizers.schedules.serialize(rate)
    return json.loads(json.dumps(config | {"learning_rate": rate}))
