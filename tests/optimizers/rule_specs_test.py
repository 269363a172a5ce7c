# SPDX-License-Identifier: Apache-2.0
"""Update rules as the core says them, and as their Python classes do."""

import inspect
import math

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from models.small_models import RULES

import tf_ext
from tf_ext import _core, optimizers

_ACCUMULATOR = {"initial_accumulator_value": ">= 0.0"}
_BELOW_ONE = ">= 0.0 and < 1.0"
# What each class allows, but for the weight decay and the learning rate.
_RANGES = {
    "sgd": {"momentum": _BELOW_ONE},
    "adagrad": _ACCUMULATOR | {"epsilon": ">= 0.0"},
    "row_wise_adagrad": _ACCUMULATOR | {"epsilon": ">= 0.0"},
    "adam": {"beta_1": _BELOW_ONE, "beta_2": _BELOW_ONE, "epsilon": ">= 0.0"},
    "ftrl": _ACCUMULATOR
    | {
        "learning_rate_power": "<= 0.0",
        "l1_regularization_strength": ">= 0.0",
        "l2_regularization_strength": ">= 0.0",
        "l2_shrinkage_regularization_strength": ">= 0.0",
        "beta": ">= 0.0",
    },
    "rmsprop": {
        "rho": _BELOW_ONE,
        "momentum": _BELOW_ONE,
        "epsilon": ">= 0.0",
    },
    "lion": {"beta_1": _BELOW_ONE, "beta_2": _BELOW_ONE},
}
_BAD = {
    ">= 0.0": (-1e-30, -1),
    "> 0.0": (0, -1.0),
    "<= 0.0": (1e-30, 1),
    _BELOW_ONE: (-1e-30, 1, 1.5),
}
_GOOD = {
    ">= 0.0": (0, 7.5),
    "> 0.0": (1e-30, np.float32(2)),
    "<= 0.0": (0, -3),
    _BELOW_ONE: (0, 0.999),
}
# One is above all floats.
_NO_NUMBERS = (math.nan, math.inf, -math.inf, 10**400, "1", None, True, [0.5])

# Rule, what its rows are named by in the configuration of a table.
_CONFIGS = (
    (optimizers.SparseSGD(), {"optimizer": "sgd"}),
    (optimizers.SparseLion(), {"optimizer": "lion"}),
    (optimizers.SparseSGD(momentum=0.5), {"optimizer": "momentum"}),
    (
        optimizers.SparseAdagrad(initial_accumulator_value=0.25),
        {
            "optimizer": "adagrad",
            "optimizer.initial_accumulator_value": "0.25",
        },
    ),
    (
        optimizers.SparseRowWiseAdagrad(),
        {
            "optimizer": "row_wise_adagrad",
            "optimizer.initial_accumulator_value": "0.1",
        },
    ),
    (
        optimizers.SparseAdam(),
        {"optimizer": "adam", "optimizer.bias_correction": "row"},
    ),
    (
        optimizers.SparseAdam(bias_correction="global"),
        {"optimizer": "adam", "optimizer.bias_correction": "global"},
    ),
    (
        optimizers.SparseFtrl(initial_accumulator_value=3e-10),
        {"optimizer": "ftrl", "optimizer.initial_accumulator_value": "3e-10"},
    ),
    (
        optimizers.SparseAdam(beta_2=0.99, absent="decay"),
        {
            "optimizer": "dense_adam",
            "optimizer.bias_correction": "row",
            "optimizer.beta_1": "0.9",
            "optimizer.beta_2": "0.99",
            "optimizer.epsilon": "1e-07",
        },
    ),
    (
        optimizers.SparseRMSprop(momentum=0.5),
        {
            "optimizer": "rmsprop",
            "optimizer.centered": "0",
            "optimizer.momentum_field": "1",
        },
    ),
    (
        optimizers.SparseRMSprop(centered=True),
        {
            "optimizer": "rmsprop",
            "optimizer.centered": "1",
            "optimizer.momentum_field": "0",
        },
    ),
)


def _arguments(rule):
    """The constructor's arguments with their defaults."""
    parameters = inspect.signature(RULES[rule].__init__).parameters
    return {k: p.default for k, p in parameters.items() if k != "self"}


def _specs(rule):
    """The core's rules that a class stands for."""
    names = {"sgd": ["sgd", "momentum"], "adam": ["adam", "dense_adam"]}
    return [_core.update_rule(name) for name in names.get(rule, [rule])]


class SpecTest(parameterized.TestCase):
    def test_every_rule_of_the_core_has_a_class(self):
        names = {spec["name"] for rule in RULES for spec in _specs(rule)}
        self.assertCountEqual(names | {"none"}, _core.update_rules())

    def test_every_class_is_tested(self):
        classes = {
            getattr(optimizers, name)
            for name in optimizers.__all__
            if name.startswith("Sparse") and name != "SparseOptimizer"
        }
        self.assertEqual(classes, set(RULES.values()))
        self.assertEqual(RULES.keys(), _RANGES.keys())

    @parameterized.parameters(*RULES)
    def test_arguments_and_defaults_are_those_of_the_core(self, rule):
        found = _arguments(rule)
        # No weight decay; the default of the core is 0.
        self.assertIsNone(found.pop("weight_decay"))
        self.assertIsNone(found.pop("learning_rate"))
        expected = {}
        for spec in _specs(rule):
            for entry in (*spec["hyperparameters"], *spec["identity"]):
                expected[entry["name"]] = entry["default"]
        self.assertEqual(expected.pop("weight_decay"), 0)
        self.assertIsNone(expected.pop("learning_rate"))
        # The class takes these as bools, and one from its momentum.
        for name in ("nesterov", "centered"):
            if name in expected:
                expected[name] = bool(int(expected[name]))
        expected.pop("momentum_field", None)
        self.assertEqual(found.pop("absent", "keep"), "keep")
        self.assertEqual(found, expected)

    @parameterized.parameters(*_RANGES)
    def test_a_configuration_has_all_arguments(self, rule):
        kind = RULES[rule]
        values = {
            name: _GOOD[allowed][1] for name, allowed in _RANGES[rule].items()
        }
        config = kind(0.5, weight_decay=0.25, **values).get_config()
        # Only if it is not the default, as in earlier files.
        arguments = inspect.signature(kind).parameters.keys() - {"absent"}
        self.assertEqual(config.keys(), arguments)
        given = {"learning_rate": 0.5, "weight_decay": 0.25, **values}
        self.assertEqual(config | given, config)
        self.assertEqual(kind.from_config(config).get_config(), config)

    def test_every_number_has_a_range_that_is_tested(self):
        for rule, ranges in _RANGES.items():
            numbers = {
                name
                for name, value in _arguments(rule).items()
                if isinstance(value, float)
            }
            self.assertEqual(numbers, ranges.keys())

    @parameterized.parameters(*RULES)
    def test_ranges(self, rule):
        rate = "> 0.0" if rule == "ftrl" else ">= 0.0"
        ranges = {"learning_rate": rate, "weight_decay": ">= 0.0"}
        for name, allowed in (ranges | _RANGES[rule]).items():
            for value in (*_BAD[allowed], *_NO_NUMBERS):
                if value is None and name in ranges:
                    continue
                if name == "learning_rate" and isinstance(value, str):
                    continue
                with self.assertRaises(ValueError) as caught:
                    RULES[rule](**{name: value})
                self.assertEqual(
                    str(caught.exception),
                    f"Argument `{name}` of {RULES[rule].__name__} must be a "
                    f"finite number {allowed}. Received: {name}={value!r}",
                )
            for value in _GOOD[allowed]:
                made = getattr(RULES[rule](**{name: value}), name)
                self.assertIsInstance(made, float)
                self.assertEqual(made, value)

    @parameterized.parameters(*RULES)
    def test_a_push_sends_what_the_core_names_in_its_order(self, rule):
        # Each its own value, far from those of the others.
        values = {
            name: (1 + i) / 64 * (-1 if allowed == "<= 0.0" else 1)
            for i, (name, allowed) in enumerate(_RANGES[rule].items())
        }
        made = RULES[rule](weight_decay=0.5, **values)
        values |= {"weight_decay": 0.5, "learning_rate": 0.75, "nesterov": 0}
        in_force = _core.update_rule(made.table_config()["optimizer"])
        names = [h["name"] for h in in_force["hyperparameters"]]
        sent = made.hyperparameters(tf.constant(0.75, tf.float64))
        self.assertEqual(sent.dtype, tf.float64)
        self.assertEqual(sent.numpy().tolist(), [values[n] for n in names])

    def test_configurations(self):
        for rule, expected in _CONFIGS:
            self.assertEqual(rule.table_config(), expected)
            config = tf_ext.SparseTable("t", 2, rule).config
            for key, value in expected.items():
                self.assertEqual(config[key], value)

    def test_a_state_brings_back_a_rate_that_was_assigned(self):
        for first, mine, continued in (
            (0.5, 0.5, 0.125),
            (0.5, 0.25, 0.25),
            (0.5, None, None),
        ):
            rule = optimizers.SparseAdagrad(first, weight_decay=0.5)
            rule.learning_rate = 0.125
            other = optimizers.SparseAdagrad(mine)
            with self.assertLogs("tf_ext", "WARNING") as logs:
                other.resume(rule.state(), "items")
            self.assertEqual(other.learning_rate, continued)
            self.assertIsNone(other.weight_decay)
            text = "'items' continues with weight_decay=None; .* with 0.5"
            self.assertRegex(logs.output[-1], text)
            self.assertLen(logs.output, 1 if continued == 0.125 else 2)
        for state in ("{", "[]", '{"config": {}}', '{"config": 1, "first": 1}'):
            with self.assertRaisesRegex(ValueError, "it is not a JSON object"):
                optimizers.SparseAdagrad(1.0).resume(state, "items")

    def test_errors_of_the_core(self):
        with self.assertRaisesRegex(
            ValueError, 'no update rule "adamax"; there are sgd, momentum, '
        ):
            _core.update_rule("adamax")
        with self.assertRaisesRegex(
            ValueError, "optimizer.bias_correction=x is not allowed"
        ):
            _core.update_rule_slots(
                "optimizer=adam\noptimizer.bias_correction=x\n", 4
            )
        with self.assertRaisesRegex(ValueError, "unknown key dim=4"):
            _core.update_rule_slots("optimizer=adam\ndim=4\n", 4)


if __name__ == "__main__":
    absltest.main()
