# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of the update rules that tests go through."""

# Case, rule, hyperparameters that are not the defaults.
CASES = (
    ("sgd", "sgd", {}),
    ("momentum", "sgd", {"momentum": 0.9}),
    ("nesterov", "sgd", {"momentum": 0.8, "nesterov": True}),
    ("adagrad", "adagrad", {}),
    (
        "adagrad_all_options",
        "adagrad",
        {"initial_accumulator_value": 0.5, "epsilon": 1e-2},
    ),
    ("row_wise_adagrad", "row_wise_adagrad", {}),
    (
        "row_wise_adagrad_all_options",
        "row_wise_adagrad",
        {"initial_accumulator_value": 0.5, "epsilon": 1e-2},
    ),
    ("adam", "adam", {}),
    (
        "adam_all_options",
        "adam",
        {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3},
    ),
    ("adam_global", "adam", {"bias_correction": "global"}),
    ("ftrl", "ftrl", {}),
    (
        "ftrl_all_options",
        "ftrl",
        {
            "learning_rate_power": -0.7,
            "initial_accumulator_value": 0.4,
            "l1_regularization_strength": 0.3,
            "l2_regularization_strength": 0.2,
            "l2_shrinkage_regularization_strength": 0.1,
            "beta": 0.5,
        },
    ),
    ("ftrl_l1", "ftrl", {"l1_regularization_strength": 2.0}),
    ("rmsprop", "rmsprop", {}),
    ("rmsprop_momentum", "rmsprop", {"momentum": 0.9}),
    ("rmsprop_centered", "rmsprop", {"centered": True}),
    (
        "rmsprop_all_options",
        "rmsprop",
        {"rho": 0.8, "momentum": 0.5, "centered": True, "epsilon": 1e-2},
    ),
    ("lion", "lion", {}),
    ("lion_all_options", "lion", {"beta_1": 0.8, "beta_2": 0.95}),
)
