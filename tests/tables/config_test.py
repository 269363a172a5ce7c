# SPDX-License-Identifier: Apache-2.0
"""What follows from the arguments of a table."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext import admission, eviction
from tf_ext.tables.config import (
    TableConfig,
    check_identity,
    exported_text,
    served_text,
)

pytestmark = pytest.mark.both_kerases(slow=True)


_TRAINED = "weights_only", "serves"
_ALL = "", "convert", *_TRAINED
_NORMAL = {"initializer": tf_ext.initializers.Normal()}
_UNSEEN = {"eviction": eviction.Unseen(steps=5)}
_HALF = {"slot_dtype": "bfloat16"}


def _adagrad(initial):
    rule = tf_ext.optimizers.SparseAdagrad(initial_accumulator_value=initial)
    return {"optimizer": rule}


def _config(**arguments):
    given = {
        "name": "user",
        "dim": 2,
        "optimizer": tf_ext.optimizers.SparseAdam(),
        "initializer": tf_ext.initializers.Zeros(),
    }
    return TableConfig(**given | arguments)


def _entries(text):
    return dict(line.split("=", 1) for line in text.splitlines())


class TableConfigTest(tf.test.TestCase, parameterized.TestCase):
    def test_members_are_the_arguments_of_a_table(self):
        arguments = set(inspect.signature(tf_ext.SparseTable).parameters)
        self.assertEqual(
            set(_config().get_config()), arguments - {"trainable"} | {"uid"}
        )
        table = tf_ext.SparseTable("user", 2)
        self.assertEqual(set(table.get_config()), arguments | {"uid"})

    @parameterized.parameters(("dim", 1, 65536), ("seed", 0, 2**64 - 1))
    def test_integers_have_limits(self, name, least, most):
        for value in (least, most, np.int64(least)):
            given = {"dim": 2, name: value}
            table = tf_ext.SparseTable("user", **given)
            self.assertEqual(table.get_config()[name], value)
        # A bool is no integer here, although Python has it as one.
        for value in (least - 1, most + 1, True, 2.0, "2"):
            given = {"dim": 2, name: value}
            with self.assertRaisesRegex(
                ValueError, f"`{name}` of SparseTable must be an integer from"
            ):
                tf_ext.SparseTable("user", **given)

    def test_a_table_is_made_again_from_all_arguments(self):
        table = tf_ext.SparseTable(
            "user",
            2,
            "adam",
            "normal",
            seed=3,
            trainable=False,
            eviction=eviction.Unseen(seconds=5),
            statistics=["show"],
            admission=admission.Count(2, forget=9),
            unknown="zeros",
            dtype="float16",
            slot_dtype="bfloat16",
        )
        copy = tf_ext.SparseTable.from_config(table.get_config())
        self.assertEqual(copy.rows.config, table.rows.config)
        self.assertEqual(copy.rows.fields, table.rows.fields)
        self.assertFalse(copy.trainable)
        self.assertNotEqual(copy.uid, table.uid)
        self.assertEqual(
            copy.get_config() | {"uid": ""}, table.get_config() | {"uid": ""}
        )

    def test_numbers_and_lists_are_its_own(self):
        names = ["show"]
        config = TableConfig(
            "user",
            np.int64(2),
            tf_ext.optimizers.SparseSGD(),
            tf_ext.initializers.Zeros(),
            seed=np.uint64(2**63),
            statistics=names,
        )
        names.append("click")
        saved = config.get_config()
        self.assertEqual(saved["statistics"], ["show"])
        self.assertIs(type(saved["dim"]), int)
        self.assertIs(type(saved["seed"]), int)
        self.assertEqual(saved["seed"], 2**63)

    @parameterized.parameters(
        (None, ["weights", "m", "v", "step", "last_seen", "show"]),
        ((), ["weights"]),
        (("show", "click"), ["weights", "show", "click"]),
    )
    def test_fields_are_those_of_the_text(self, served, names):
        config = _config(
            eviction=eviction.Unseen(steps=5),
            statistics=["show"],
            admission=admission.Probability(0.5),
            served_statistics=served,
        )
        found = [field.name for field in config.fields]
        self.assertCountEqual(found, names)
        entries = _entries(config.text)
        self.assertEqual("last_seen" in entries, "last_seen" in found)
        statistics = ",".join(name for name in found if name in _STATISTICS)
        self.assertEqual(entries.get("statistics", ""), statistics)
        self.assertEqual(",".join(config.stored_statistics), statistics)
        self.assertEqual(entries["optimizer"] == "none", config.weights_only)
        self.assertEqual("admission" in entries, not config.weights_only)
        table = tf_ext.tables.rows.TableRows(config)
        self.assertEqual(_entries(table.config), entries | _canonical(table))

    def test_statistics_are_kept_only_where_they_are_read(self):
        text = _config(statistics=["show", "click"]).text
        self.assertNotIn("statistics", _entries(served_text(text)))
        kept = served_text(text, ["show", "click"])
        self.assertEqual(_entries(kept)["statistics"], "show,click")

    def test_what_does_not_serve_is_left_out(self):
        kept = {"unknown": [0.5, 0.25], "l2": 0.5, "seed": 7}
        text = _config(
            eviction=eviction.Unseen(seconds=5),
            statistics=["show"],
            admission=admission.Count(2, forget=9),
            slot_dtype="bfloat16",
            **kept,
        ).text
        for made, left in (
            (served_text(_config(**kept).text), served_text(text)),
            (exported_text(_config(**kept, l1=0.5).text), None),
        ):
            plain = _entries(_config(**kept).text)
            wanted = {
                key: value
                for key, value in plain.items()
                if not key.startswith("optimizer.")
                and (left is not None or key != "l2")
            } | {"optimizer": "none"}
            self.assertEqual(_entries(made), wanted)
            if left is not None:
                self.assertEqual(left, made)

    @parameterized.named_parameters(
        (f"{key}_{i}", key, *case)
        for i, (key, *case) in enumerate(
            [
                ("name", {"name": "a"}, {}, _ALL),
                ("admission", {"admission": admission.Count(2)}, {}, _ALL),
                ("admission", {}, {"admission": admission.Count(2)}, _ALL),
                ("unknown", {"unknown": "zeros"}, {}, _ALL),
                ("unknown", {"unknown": (1.0, 2.0)}, {}, _ALL),
                ("optimizer.initial", _adagrad(0.5), _adagrad(0.25), _ALL),
                ("seed", {"seed": 2}, {}, ("weights_only",)),
                ("initializer", _NORMAL, {}, ("weights_only",)),
                ("optimizer", _adagrad(0.1), {}, ("weights_only", "serves")),
                ("last_seen", _UNSEEN, {}, _TRAINED),
                ("statistics", {"statistics": ["show"]}, {}, _TRAINED),
                ("statistics", {}, {"statistics": ["show"]}, _TRAINED),
                ("slot_dtype", _HALF, {}, (*_TRAINED, "convert")),
                ("dtype", {"dtype": "float16"}, {}, ("convert",)),
                ("dim", {"dim": 3}, {}, ()),
                ("l2", {"l2": 0.5}, {}, ("weights_only",)),
                ("l1", {}, {"l1": 0.5}, ()),
                ("l1", {"l2": 0.5}, {"l1": 0.5}, ()),
            ]
        )
    )
    def test_keys_in_which_rows_may_differ(self, key, mine, theirs, allowed):
        one, saved = _config(**mine).text, _config(**theirs).text
        for mode, text, weights_only, convert in (
            ("", one, False, False),
            ("weights_only", one, True, False),
            ("convert", one, False, True),
            ("serves", served_text(one), False, False),
        ):
            arguments = "user", text, saved, weights_only, convert
            if mode in allowed:
                check_identity(*arguments)
                continue
            with self.assertRaisesRegex(ValueError, f"its `{key}[^`]*` is"):
                check_identity(*arguments)

    def test_texts_may_differ_where_rows_do_not(self):
        mine = _config(unknown="zeros", admission=admission.Count(2)).text
        theirs = TableConfig(
            "other",
            2,
            tf_ext.optimizers.SparseAdam(),
            tf_ext.initializers.Zeros(),
        ).text
        check_identity("user", mine, theirs, weights_only=False)
        with self.assertRaisesRegex(ValueError, "its `seed` is '1', that of"):
            check_identity("user", _config(seed=1).text, theirs, False)
        check_identity("user", _config(seed=1).text, theirs, True)


_STATISTICS = ("show", "click")


def _canonical(rows):
    """The entries that the core writes in another form."""
    return {
        key: value
        for key, value in _entries(rows.config).items()
        if key.startswith("initializer.")
    }
