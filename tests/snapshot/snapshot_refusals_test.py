# SPDX-License-Identifier: Apache-2.0
"""Snapshots and recovery points that say what cannot be: each by its error."""

import contextlib
import io
import json
import os

import pytest
import snapshot_util as util
from absl.testing import absltest, parameterized
from oracles import snapshot_files_util as files_util
from oracles import snapshot_forging
from saving_util import PointTestCase, TestCase, contents

from tf_ext import _core
from tf_ext.recovery import points as recovery_points
from tf_ext.snapshot import DamagedSnapshotError, cli, open_snapshot

pytestmark = pytest.mark.slow_except(
    "PointRefusalsTest::test_a_dtype_of_another_model1",
    "PointRefusalsTest::test_kinds_of_files",
    "PointRefusalsTest::test_member_variable_twice",
    "SnapshotRefusalsTest::*_0",
    "SnapshotRefusalsTest::*_a_full",
    "SnapshotRefusalsTest::*_null",
    "SnapshotRefusalsTest::test_a_manifest_of_a_terabyte",
    "SnapshotRefusalsTest::test_a_state_that_cannot_be_taken_up[013]",
    "SnapshotRefusalsTest::test_bases",
    "SnapshotRefusalsTest::test_every_member",
    "SnapshotRefusalsTest::test_fields_of_another_table",
    "SnapshotRefusalsTest::test_files_that_changed_shards",
    "SnapshotRefusalsTest::test_kinds_of_files",
    "SnapshotRefusalsTest::test_member_config",
    "SnapshotRefusalsTest::test_member_field_twice",
    "SnapshotRefusalsTest::test_member_label",
    "SnapshotRefusalsTest::test_member_name_[1346]",
    "SnapshotRefusalsTest::test_member_no_base",
    "SnapshotRefusalsTest::test_member_no_fields",
    "SnapshotRefusalsTest::test_member_offset",
    "SnapshotRefusalsTest::test_member_shards_huge",
    "SnapshotRefusalsTest::test_member_shards_true",
    "SnapshotRefusalsTest::test_member_step",
    "SnapshotRefusalsTest::test_the_decoder_of_numpy_refuses_sizes",
    "SnapshotRefusalsTest::test_what_is_no_object",
)

_HUGE = 2**63 - 1


def _set(*path, to):
    """A change that sets one member."""

    def change(members):
        for step in path[:-1]:
            members = members[step]
        members[path[-1]] = to

    return change


def _remove(*path):
    def change(members):
        for step in path[:-1]:
            members = members[step]
        del members[path[-1]]

    return change


_CASES = (
    ("shards_0", _set("shards", to=0), "shards must be an integer from 1 to"),
    ("shards_negative", _set("shards", to=-1), "shards must .*, but is -1"),
    ("shards_true", _set("shards", to=True), "shards must .*, but is True"),
    ("shards_huge", _set("shards", to=2**40), "shards must .* to 1048576"),
    (
        "shards_without_files",
        _set("shards", to=3),
        r"files must be a list with at least one file of each of the 3 shards "
        r"\(it has some of 2\)",
    ),
    ("no_shards", _remove("shards"), "shards must .*, but is missing"),
    ("no_base", _remove("base"), "base must be null or a value, but is missi"),
    ("a_base_of_a_full", _set("kind", to="delta"), "kind must be 'full' where"),
    (
        "a_delta_without_its_kind",
        _set("base", to={"path": "../x", "id": "0" * 32}),
        "kind must be 'delta' where there is a base, but is 'full'",
    ),
    ("sequence", _set("sequence", to=1), "sequence must be .* from 0 to 0"),
    ("id", _set("id", to="F" * 32), "id must be 32 lower-case hexadecimal"),
    ("step", _set("step", to=1.5), r"step must be an integer, but is 1\.5"),
    ("chunk_bytes_0", _set("chunk_bytes", to=0), "chunk_bytes must .* is 0"),
    ("chunk_bytes", _set("chunk_bytes", to=2**62), "chunk_bytes must .* 10485"),
    (
        "row_bytes",
        _set("row", "bytes", to=_HUGE),
        f"row.bytes must be an integer from 24 to 24, but is {_HUGE}",
    ),
    (
        "count",
        _set("row", "fields", 1, "count", to=2**61),
        r"row.fields\[1\].count must be an integer from 1 to 65536",
    ),
    (
        "count_of_signs",
        _set("row", "fields", 0, "count", to=2),
        r"row.fields\[0\].count must be an integer from 1 to 1, but is 2",
    ),
    (
        "offset",
        _set("row", "fields", 2, "offset", to=20),
        r"row.fields\[2\].offset must be an integer from 16 to 16, but is 20",
    ),
    (
        "dtype",
        _set("row", "fields", 2, "dtype", to="string"),
        r"row.fields\[2\].dtype must be 'float32' or 'int32', but is 'string'",
    ),
    (
        "field_twice",
        _set("row", "fields", 2, "name", to="weights"),
        r"row.fields\[2\].name must be a name that no other field has",
    ),
    (
        "no_fields",
        _set("row", "fields", to=[]),
        "row.fields must be a list of 2 to 32 fields",
    ),
    (
        "row_null",
        _set("row", to=None),
        "row must be a JSON object, but is None",
    ),
    (
        "dim",
        _set("table", "config", to="dim=3\n"),
        "table.config must be one with the line dim=2, as of weights",
    ),
    (
        "config",
        _set("table", "config", to="dim=2\n\nx"),
        "table.config must be lines of the form key=value",
    ),
    (
        "label",
        _set("table", "label", to="\x1b[2J"),
        "table.label must be a printable",
    ),
    ("files_null", _set("files", to=None), "files must be a list, but is None"),
    (
        "files_twice",
        lambda m: m["files"].append(m["files"][0]),
        "files must be a list of files with different names",
    ),
    *(
        (
            f"name_{i}",
            _set("files", 0, "name", to=name),
            r"files\[0\].name must",
        )
        for i, name in enumerate(
            ("/etc/passwd", "../0/x", "x", "", None, "manifest.json\n", 7)
        )
    ),
    (
        "rows",
        _set("files", 0, "rows", to=2**60),
        r"files\[0\].rows must be an integer from 0 to",
    ),
    ("rows_sum", _set("rows", to=1), "rows must be an integer from 12 to 12"),
    (
        "erased_in_a_full",
        _set("files", 0, "erased", to=1),
        r"files\[0\].erased must be an integer from 0 to 0",
    ),
    ("tag", _set("files", 0, "tag", to="0x1"), r"files\[0\].tag must be 16 lo"),
    ("crc", _set("files", 1, "crc32c", to=5), r"files\[1\].crc32c must be 8 l"),
    ("state", _set("state", "optimizer", to=None), "state.optimizer must be"),
)


class SnapshotRefusalsTest(TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory(), "0")
        self.saved = util.table(2, dim=2)
        util.push(self.saved, range(12))
        self.saved.save(self.path, incremental=True)
        self.manifest = os.path.join(self.path, "manifest.json")
        self.table = util.table(dim=2)
        util.push(self.table, [1, 2], 3)
        self.before = contents(self.table)

    def _assert_refused(self, message, path=None):
        """By all readers in the same words; the table is as it was."""
        path = path or self.path
        with self.assertRaisesRegex(DamagedSnapshotError, message):
            self.table.load(path)
        self.assertEqual(contents(self.table), self.before)
        with self.assertRaisesRegex(DamagedSnapshotError, message):
            open_snapshot(path).verify()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(cli.main(["verify", path]), 1)
        self.assertRegex(
            said.getvalue().splitlines()[0],
            "^python -m tf_ext.snapshot: error: .*" + message.removeprefix("^"),
        )

    @parameterized.named_parameters(*_CASES)
    def test_member(self, change, message):
        snapshot_forging.reseal(self.manifest, change)
        self._assert_refused(
            f"^{self.manifest} is damaged: its member {message}"
        )

    def test_every_member(self):
        # By one reader: that all say the same is tested with some members.
        with open(self.manifest, "rb") as file:
            whole = file.read()
        for name, change, message in _CASES:
            with open(self.manifest, "wb") as file:
                file.write(whole)
            snapshot_forging.reseal(self.manifest, change)
            with self.assertRaisesRegex(
                DamagedSnapshotError, f"damaged: its member {message}", msg=name
            ):
                open_snapshot(self.path)

    def test_what_is_no_object(self):
        for body, message in (
            (b"[1", "it must be a JSON object|it is not JSON"),
            (b"{" + b'"a":[' * 100_000, "it is not JSON of a snapshot"),
            (b'{"format": 1,\n"format": 1', "'format' occurs twice"),
            (b"\xff", "it is not JSON of a snapshot: 'utf-8' codec"),
            (b'{"format": 1' + b"0" * 5000, "it is not JSON of a snapshot"),
            (b'{"format": "1"', "member format must be an integer, but is '1'"),
        ):
            with open(self.manifest, "wb") as file:
                file.write(snapshot_forging.seal(body))
            self._assert_refused(f"^{self.manifest} is damaged: .*({message})")

    def test_a_manifest_of_a_terabyte(self):
        with open(self.manifest, "r+b") as file:
            file.truncate(1 << 40)
        self._assert_refused("has 1099511627776 bytes, which is more than the")

    def test_kinds_of_files(self):
        for file in (self.manifest, util.data_files(self.path)[0]):
            with open(file, "rb") as opened:
                data = opened.read()
            away = self.path + ".away"
            with open(away, "wb") as opened:
                opened.write(data)
            for make in (
                os.mkfifo,
                os.mkdir,
                lambda p: os.symlink(p, p),
                lambda p, away=away: os.symlink(away, p),
                lambda p: os.symlink("/dev/zero", p),
            ):
                os.remove(file)
                make(file)
                self._assert_refused(
                    f"^{file} is damaged at byte 0: it is not a regular file"
                )
                if os.path.isdir(file) and not os.path.islink(file):
                    os.rmdir(file)
                    make = None
                else:
                    os.remove(file)
                with open(file, "wb") as opened:
                    opened.write(data)

    def test_bases(self):
        delta = os.path.join(os.path.dirname(self.path), "1")
        util.push(self.saved, [3], 1)
        self.saved.save(delta, base=self.path)
        manifest = os.path.join(delta, "manifest.json")
        with open(manifest, "rb") as opened:
            members = json.load(opened)
        before = members["base"]
        for base, message in (
            (
                {"path": ".", "id": members["id"]},
                f"^{delta} is number 1 of a chain, so its base must "
                f"be number 0, but {delta} is number 1",
            ),
            ({**before, "path": "../0\0"}, "base.path must be the path of a"),
            ({**before, "path": 5}, "base.path must be the path of a director"),
            ({**before, "id": None}, "base.id must be 32 lower-case hexadeci"),
            (
                {**before, "path": "a" * 300},
                "which cannot be opened: File name too long",
            ),
            (
                {**before, "path": "no://where"},
                "in 'no://where', which cannot be opened: File system scheme",
            ),
            ([], "base must be a JSON object, but is"),
        ):
            snapshot_forging.reseal(manifest, _set("base", to=base))
            self._assert_refused(message, delta)
        os.symlink("loop", os.path.join(delta, "loop"))
        snapshot_forging.reseal(
            manifest, _set("base", to={**before, "path": "loop"})
        )
        self._assert_refused("loop/manifest.json is damaged at byte 0", delta)
        # Rows of other fields.
        snapshot_forging.reseal(manifest, _set("base", to=before))
        snapshot_forging.reseal(
            self.manifest, _set("row", "fields", 2, "name", to="momentum")
        )
        self._assert_refused(
            "and its base .* have rows with different fields", delta
        )

    def test_files_that_changed_shards(self):
        def change(members):
            shards = [file["shard"] for file in members["files"]]
            for file, shard in zip(members["files"], reversed(shards)):
                file["shard"] = shard

        snapshot_forging.reseal(self.manifest, change)
        self._assert_refused(
            r"\.chunks holds the sign -?\d+ of shard 0, but should hold signs "
            "of shard 1 alone|"
            r"\.chunks holds the sign -?\d+ of shard 1, but should hold signs "
            "of shard 0 alone"
        )

    def test_fields_of_another_table(self):
        def change(members):
            members["row"]["fields"][2]["name"] = "momentum"

        snapshot_forging.reseal(self.manifest, change)
        with self.assertRaisesRegex(
            DamagedSnapshotError,
            r"row.fields must be .* of table.config, weights float32\[2\], "
            r"accumulator float32\[2\], but is weights float32\[2\], momentum",
        ):
            self.table.load(self.path)
        self.assertEqual(contents(self.table), self.before)

    @parameterized.parameters(
        ("x", "it is not a JSON object"),
        ("[" * 100_000, "it is not a JSON object"),
        ("{}", "it is not a JSON object"),
        ('{"config": 5, "first": {}}', "it is not a JSON object"),
        (
            '{"config": {"learning_rate": "x"}, "first": '
            '{"learning_rate": 0.1}}',
            "Argument `learning_rate` of SparseAdagrad must be a finite",
        ),
    )
    def test_a_state_that_cannot_be_taken_up(self, state, message):
        snapshot_forging.reseal(
            self.manifest, _set("state", "optimizer", to=state)
        )
        with self.assertRaisesRegex(
            DamagedSnapshotError,
            f"{self.manifest} is damaged: its member state must be .*{message}",
        ):
            self.table.load(self.path)
        self.assertEqual(contents(self.table), self.before)
        self.table.load(self.path, weights_only=True)
        self.assertEqual(self.table.size(), 12)

    def test_the_decoder_of_numpy_refuses_sizes(self):
        data = files_util.chunk(0, 7, rows=[(1, 1.0)])
        for chunk_bytes, row_bytes, index, message in (
            (4096, _HUGE, 0, "row_bytes must be from 8 to 16777216"),
            (_HUGE, 12, 0, "chunk_bytes must be from 44 to 1048576"),
            (4096, -1, 0, "row_bytes must be"),
            (4096, 12, _HUGE, "the index of a chunk is 9223372036854775807"),
            (4096, 12, -1, "the index of a chunk is -1"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                _core.decode_chunk(data, chunk_bytes, row_bytes, 7, index)
        for row_bytes in (0, 2**24 + 1, _HUGE):
            with self.assertRaisesRegex(ValueError, "row_bytes must be from 8"):
                _core.chunk_bytes_for(row_bytes)
            with self.assertRaisesRegex(ValueError, "row_bytes must be from 8"):
                _core.RowFileEncoder(row_bytes, 7)


_POINT_CASES = (
    ("step", _set("step", to=-1), "its member step must be an integer from 0"),
    ("epoch", _remove("epoch"), "its member epoch must .*, but is missing"),
    ("tables", _set("tables", to=None), "its member tables must be a list"),
    (
        "table_id",
        _set("tables", 0, "id", to="x"),
        r"its member tables\[0\].id must be 32 lower-case",
    ),
    (
        "another_table",
        _set("tables", 0, "id", to="0" * 32),
        "table-000 must be the snapshot 0{32}, which .*point.json names, but",
    ),
    (
        "variables_file",
        _set("variables_file", to="../../etc/passwd"),
        "its member variables_file must be a name variables-",
    ),
    (
        "crc",
        _set("variables_crc32c", to=5),
        "its member variables_crc32c must be 8 lower-case",
    ),
    (
        "shape",
        _set("variables", 0, "shape", to=[-1]),
        r"its member variables\[0\].shape must be a list of sizes",
    ),
    (
        "dtype",
        _set("variables", 0, "dtype", to="string"),
        r"its member variables\[0\].dtype must be a type of numbers",
    ),
    (
        "no_dtype",
        _set("variables", 0, "dtype", to="x"),
        r"its member variables\[0\].dtype must be a type of numbers",
    ),
    (
        "variable_twice",
        lambda m: m["variables"].append(m["variables"][0]),
        "name must be a name that no other variable has",
    ),
    (
        "more_accumulated",
        lambda m: m["variables"].append(
            {"name": "accumulated/x", "dtype": "uint8", "shape": [2**62]}
        ),
        "that of the [0-9]+ that it has is",
    ),
)


class PointRefusalsTest(PointTestCase):
    def setUp(self):
        super().setUp()
        [table] = self.model.tables
        table.erase(table.export_rows()[0][:3])
        self.before = contents(table)

    def _read(self):
        recovery_points.read(
            self.point, self.model, lambda table, path: table.load(path)
        )

    @parameterized.named_parameters(*_POINT_CASES)
    def test_member(self, change, message):
        snapshot_forging.reseal(self.file, change)
        with self.assertRaisesRegex(DamagedSnapshotError, message):
            self._read()
        self.assertEqual(contents(self.model.tables[0]), self.before)

    @parameterized.parameters("int32", "bool", "complex64", "bfloat16")
    def test_a_dtype_of_another_model(self, dtype):
        def change(members):
            for variable in members["variables"]:
                if variable["dtype"] == "float32":
                    variable["dtype"] = dtype

        snapshot_forging.reseal(self.file, change)
        with self.assertRaisesRegex(
            ValueError, f"has the dtype float32 in the model, but {dtype} there"
        ):
            self._read()
        self.assertEqual(contents(self.model.tables[0]), self.before)

    def test_kinds_of_files(self):
        [name] = [n for n in os.listdir(self.point) if n.startswith("variab")]
        for file in (os.path.join(self.point, name), self.file):
            os.remove(file)
            os.mkfifo(file)
            with self.assertRaisesRegex(
                DamagedSnapshotError, f"{file} is damaged .*not a regular file"
            ):
                self._read()
        self.assertEqual(contents(self.model.tables[0]), self.before)


if __name__ == "__main__":
    absltest.main()
