# SPDX-License-Identifier: Apache-2.0
"""A reference table in NumPy and float64, which is updated row by row.

It is lazy: a row changes only in a step in which its sign is pushed, and then
once. Formulas, hyperparameters, defaults and initial slot values are those that
https://keras.io/api/optimizers documents for the optimizer of the same name;
row-wise Adagrad is that of Torchrec, with Keras's epsilon.
"""

import numpy as np


def _sgd(row, g, rate, step, *, momentum=0.0, nesterov=False):
    del step
    if not momentum:
        row["weights"] -= rate * g
        return
    row.setdefault("momentum", np.zeros_like(g))
    row["momentum"] = momentum * row["momentum"] - rate * g
    row["weights"] += (
        momentum * row["momentum"] - rate * g if nesterov else row["momentum"]
    )


def _adagrad(
    row, g, rate, step, *, initial_accumulator_value=0.1, epsilon=1e-7
):
    del step
    row.setdefault("accumulator", np.full_like(g, initial_accumulator_value))
    row["accumulator"] += g**2
    row["weights"] -= rate * g / np.sqrt(row["accumulator"] + epsilon)


def _row_wise_adagrad(
    row, g, rate, step, *, initial_accumulator_value=0.1, epsilon=1e-7
):
    del step
    row.setdefault("accumulator", np.full(1, initial_accumulator_value))
    row["accumulator"] += np.mean(g**2)
    row["weights"] -= rate * g / np.sqrt(row["accumulator"] + epsilon)


def _adam(
    row,
    g,
    rate,
    step,
    *,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-7,
    bias_correction="row",
):
    row.setdefault("m", np.zeros_like(g))
    row.setdefault("v", np.zeros_like(g))
    if bias_correction == "row":
        step = row["step"] = row.get("step", np.zeros(1)) + 1
    row["m"] = beta_1 * row["m"] + (1 - beta_1) * g
    row["v"] = beta_2 * row["v"] + (1 - beta_2) * g**2
    rate = rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    row["weights"] -= rate * row["m"] / (np.sqrt(row["v"]) + epsilon)


def _ftrl(
    row,
    g,
    rate,
    step,
    *,
    learning_rate_power=-0.5,
    initial_accumulator_value=0.1,
    l1_regularization_strength=0.0,
    l2_regularization_strength=0.0,
    l2_shrinkage_regularization_strength=0.0,
    beta=0.0,
):
    del step
    row.setdefault("accumulator", np.full_like(g, initial_accumulator_value))
    row.setdefault("linear", np.zeros_like(g))
    before = row["accumulator"] ** -learning_rate_power
    row["accumulator"] += g**2
    after = row["accumulator"] ** -learning_rate_power
    shrunk = g + 2 * l2_shrinkage_regularization_strength * row["weights"]
    row["linear"] += shrunk - (after - before) / rate * row["weights"]
    l1 = l1_regularization_strength
    row["weights"] = (np.clip(row["linear"], -l1, l1) - row["linear"]) / (
        (after + beta) / rate + 2 * l2_regularization_strength
    )


def _rmsprop(
    row, g, rate, step, *, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False
):
    del step
    row.setdefault("velocity", np.zeros_like(g))
    row["velocity"] = rho * row["velocity"] + (1 - rho) * g**2
    variance = row["velocity"]
    if centered:
        row.setdefault("average_gradient", np.zeros_like(g))
        row["average_gradient"] = rho * row["average_gradient"] + (1 - rho) * g
        variance = variance - row["average_gradient"] ** 2
    move = rate * g / np.sqrt(variance + epsilon)
    if momentum:
        row.setdefault("momentum", np.zeros_like(g))
        move = row["momentum"] = momentum * row["momentum"] + move
    row["weights"] -= move


def _lion(row, g, rate, step, *, beta_1=0.9, beta_2=0.99):
    del step
    row.setdefault("momentum", np.zeros_like(g))
    direction = beta_1 * row["momentum"] + (1 - beta_1) * g
    row["momentum"] = beta_2 * row["momentum"] + (1 - beta_2) * g
    row["weights"] -= rate * np.sign(direction)


_RULES = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "adam": _adam,
    "ftrl": _ftrl,
    "rmsprop": _rmsprop,
    "lion": _lion,
}


class ReferenceTable:
    """Rows of an update rule.

    Args:
      rule: string, as in `tf_ext.SparseTable(optimizer=rule)`.
      initial: function from a list of signs to their first weights
        `[n, dim]`, such as the `pull` of the table that is tested.
      weight_decay: float or None; see `tf_ext.optimizers.SparseOptimizer`.
      **hyperparameters: those of the rule, but for the learning rate.
    """

    def __init__(self, rule, initial, weight_decay=None, **hyperparameters):
        self._update = _RULES[rule]
        self._initial = initial
        self._weight_decay = weight_decay or 0.0
        self._hyperparameters = hyperparameters
        self.rows = {}

    def row(self, sign):
        """The fields of a row, a dict; made if it is absent."""
        if sign not in self.rows:
            weights = np.array(self._initial([sign]), np.float64)[0]
            self.rows[sign] = {"weights": weights}
        return self.rows[sign]

    def push(self, signs, gradients, learning_rate, step=1):
        """Sums the gradients `[n, dim]` of equal signs and updates rows."""
        sums = {}
        for sign, gradient in zip(signs, np.asarray(gradients, np.float64)):
            sums[int(sign)] = sums.get(int(sign), 0.0) + gradient
        for sign, gradient in sums.items():
            row = self.row(sign)
            row["weights"] = row["weights"] * (
                1 - self._weight_decay * learning_rate
            )
            self._update(
                row, gradient, learning_rate, step, **self._hyperparameters
            )

    def field(self, name, signs):
        """A field of signs, float64 `[n, count]`."""
        return np.stack([self.row(int(sign))[name] for sign in signs])
