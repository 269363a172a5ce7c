# SPDX-License-Identifier: Apache-2.0
"""The manifest of snapshots."""

import dataclasses
import json
import random

from absl.testing import absltest

from tf_ext import _core
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot import sealed_json


def _manifest(dtype="float32", slot_dtype="float32"):
    fields, row_bytes = manifests.row_fields(
        [
            ("weights", dtype, 2),
            ("step", "int32", 1),
            ("accumulator", slot_dtype, 1),
        ]
    )
    return manifests.Manifest(
        id="4f1c09d2e6b7a385a0c1b2d3e4f50617",
        base=None,
        sequence=0,
        step=12,
        tf_ext_version="0.1.0",
        tensorflow_version="2.21.0",
        table_id="deep/1/0",
        label="tief-ä",
        config=f"dim=2\ndtype={dtype}\n",
        state={"optimizer": "{}"},
        row_bytes=row_bytes,
        fields=fields,
        chunk_bytes=1 << 20,
        shards=1,
        files=(
            manifests.RowFile(
                "rows-4f1c09d2e6b7a385-00000-000.chunks",
                0,
                2**64 - 1,
                3,
                0,
                32 + 3 * row_bytes,
                7,
            ),
        ),
    )


class SnapshotManifestTest(absltest.TestCase):
    def test_fields_follow_each_other_after_the_sign(self):
        manifest = _manifest()
        self.assertEqual(
            [(f.name, f.offset) for f in manifest.fields],
            [("sign", 0), ("weights", 8), ("step", 16), ("accumulator", 20)],
        )
        self.assertEqual(manifest.row_bytes, 24)
        small = _manifest("float16", "bfloat16")
        self.assertEqual(
            [field.offset for field in small.fields], [0, 8, 12, 16]
        )
        self.assertEqual(small.row_bytes, 18)

    def test_reads_back_what_was_written(self):
        for base in (None, ("../0", "0" * 32)):
            manifest = dataclasses.replace(
                _manifest(), base=base, sequence=0 if base is None else 1
            )
            data = manifests.encode(manifest)
            self.assertEqual(manifests.decode(data, "m"), manifest)
            self.assertEqual(json.loads(data)["kind"], manifest.kind)

    def test_is_json_that_ends_with_its_crc(self):
        data = manifests.encode(_manifest())
        members = json.loads(data)
        self.assertEqual(list(members)[-1], "crc32c")
        self.assertEqual(members["rows"], 3)
        self.assertTrue(
            data.endswith(
                f',\n  "crc32c": "{members["crc32c"]}"\n}}\n'.encode()
            )
        )

    def test_every_flip_and_every_cut_is_refused(self):
        data = manifests.encode(_manifest())
        seed = random.randrange(2**32)
        generator = random.Random(seed)
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 1 << generator.randrange(8)
            with self.assertRaisesRegex(
                manifests.DamagedSnapshotError,
                "^m is damaged: it should end with its CRC32C [0-9a-f]{8}",
                msg=f"seed {seed}, byte {place}",
            ):
                manifests.decode(bytes(flipped), "m")
            with self.assertRaises(manifests.DamagedSnapshotError):
                manifests.decode(data[:place], "m")

    def test_unknown_members_are_left_alone_and_other_formats_refused(self):
        text = manifests.encode(_manifest())[: -sealed_json._ENDING_BYTES]
        text += b',\n  "more": 1'
        ending = sealed_json._ENDING.format(_core.crc32c(text)).encode()
        self.assertEqual(manifests.decode(text + ending, "m"), _manifest())
        text = text.replace(b'"format": 1', b'"format": 4')
        ending = sealed_json._ENDING.format(_core.crc32c(text)).encode()
        with self.assertRaisesRegex(
            ValueError,
            r"^m is of format 4; this version of tf_ext reads formats 1, 2 "
            r"and 3\. It was written by tf_ext 0\.1\.0\.$",
        ):
            manifests.decode(text + ending, "m")

    def test_only_small_rows_need_format_2(self):
        for weights, slot, number in (
            ("float32", "float32", 1),
            ("float16", "float32", 2),
            ("bfloat16", "bfloat16", 2),
            ("float32", "bfloat16", 2),
        ):
            manifest = _manifest(weights, slot)
            self.assertEqual(manifest.format, number)
            data = manifests.encode(manifest)
            self.assertEqual(json.loads(data)["format"], number)
            self.assertEqual(manifests.decode(data, "m"), manifest)

    def test_readers_of_format_1_alone_refuse_it_by_a_sentence(self):
        # As of tf_ext before there were small rows, and of recovery points.
        data = manifests.encode(_manifest("float16"))
        with self.assertRaisesRegex(
            ValueError,
            r"^m is of format 2; this version of tf_ext reads format 1\. It "
            r"was written by tf_ext 0\.1\.0\.$",
        ):
            sealed_json.unseal(data, "m")


if __name__ == "__main__":
    absltest.main()
