"""The manifest of snapshots."""

import dataclasses
import json
import random

from absl.testing import absltest

from tf_ext import _core, _sealed_json
from tf_ext import _snapshot_manifest as manifests


def _manifest():
    fields, row_bytes = manifests.row_fields(
        [("weights", "float32", 2), ("step", "int32", 1)]
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
        config="dim=2\n",
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
                104,
                7,
            ),
        ),
    )


class SnapshotManifestTest(absltest.TestCase):
    def test_fields_follow_each_other_after_the_sign(self):
        manifest = _manifest()
        self.assertEqual(
            [(f.name, f.offset) for f in manifest.fields],
            [("sign", 0), ("weights", 8), ("step", 16)],
        )
        self.assertEqual(manifest.row_bytes, 20)

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
        text = manifests.encode(_manifest())[: -_sealed_json._ENDING_BYTES]
        text += b',\n  "more": 1'
        ending = _sealed_json._ENDING.format(_core.crc32c(text)).encode()
        self.assertEqual(manifests.decode(text + ending, "m"), _manifest())
        text = text.replace(b'"format": 1', b'"format": 2')
        ending = _sealed_json._ENDING.format(_core.crc32c(text)).encode()
        with self.assertRaisesRegex(
            ValueError, "^m is of format 2; this version of tf_ext reads format"
        ):
            manifests.decode(text + ending, "m")


if __name__ == "__main__":
    absltest.main()
