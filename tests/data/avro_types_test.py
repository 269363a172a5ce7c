# SPDX-License-Identifier: Apache-2.0
"""Types of Apache Avro, and those of Apache Arrow that hold their values."""

import fastavro
import pyarrow as pa
from absl.testing import absltest, parameterized

from tf_ext.data import avro_types


def _record(*types, name="R"):
    fields = [{"name": f"f{n}", "type": one} for n, one in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def _types(*types):
    """The types of the fields of a record."""
    named = {}
    parsed = fastavro.parse_schema(_record(*types), named)
    return avro_types.arrow_schema(parsed, named).types


def _decimal(precision, scale=0, kind="bytes"):
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": kind, **logical}


def _array(items):
    return {"type": "array", "items": items}


_ENUM = {"type": "enum", "name": "E", "symbols": ["a"]}


class TypesTest(parameterized.TestCase):
    def test_primitive(self):
        self.assertEqual(
            _types("null", "boolean", "int", "long", "float", "double"),
            [
                *(pa.null(), pa.bool_(), pa.int32(), pa.int64()),
                *(pa.float32(), pa.float64()),
            ],
        )
        fixed = {"type": "fixed", "name": "F", "size": 2}
        self.assertEqual(
            _types("bytes", "string", _ENUM, fixed, {"type": "int"}),
            [*(pa.binary(), pa.string(), pa.string(), pa.binary()), pa.int32()],
        )

    def test_of_others(self):
        values = {"type": "map", "values": ["null", "long"]}
        inner = _record("int", _array("string"), name="I")
        struct = [("f0", pa.int32()), ("f1", pa.list_(pa.string()))]
        self.assertEqual(
            # The second is the first by its name.
            _types(values, inner, ["null", "I"]),
            [pa.map_(pa.string(), pa.int64()), *[pa.struct(struct)] * 2],
        )

    def test_unions(self):
        self.assertEqual(
            _types(["null"], ["null", "long"], ["int", "long"], ["int"]),
            [pa.null(), pa.int64(), pa.int64(), pa.int32()],
        )
        self.assertEqual(
            _types(["int", "float"], ["null", "float", "double"]),
            [pa.float64()] * 2,
        )
        kinds = pa.int64(), pa.string()
        either = pa.dense_union([pa.field(str(one), one) for one in kinds])
        self.assertEqual(_types(["null", "long", "string"]), [either])
        self.assertEqual(_types(["long", "boolean"])[0].num_fields, 2)

    def test_times(self):
        def of(kind, logical):
            return {"type": kind, "logicalType": logical}

        self.assertEqual(
            _types(
                of("long", "timestamp-micros"),
                of("long", "local-timestamp-millis"),
                of("int", "date"),
            ),
            [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.date32()],
        )
        self.assertEqual(_types(of("long", "date")), [pa.int64()])

    @parameterized.parameters(
        ("long", "timestamp-days"),
        ("long", "millis"),
        ("long", "my-own"),
        ("long", 3),
        ("int", "timestamp-millis"),
    )
    def test_logical_types_of_others_are_numbers(self, kind, logical):
        schema = _record({"type": kind, "logicalType": logical})
        expected = pa.int64() if kind == "long" else pa.int32()
        found = avro_types.arrow_schema(schema, {"R": schema}).types
        self.assertEqual(found, [expected])

    def test_decimals(self):
        fixed = _decimal(4, kind="fixed") | {"name": "D", "size": 2}
        self.assertEqual(
            _types(_decimal(1), _decimal(38, 2), _decimal(39), fixed),
            [
                *(pa.decimal128(1), pa.decimal128(38, 2), pa.decimal256(39)),
                pa.decimal128(4),
            ],
        )
        self.assertEqual(_types(_decimal(76, 3)), [pa.decimal256(76, 3)])
        for digits in (0, 77):
            schema = _record(_decimal(digits))
            with self.assertRaisesRegex(ValueError, f"{digits} digits; at mos"):
                avro_types.arrow_schema(schema, {"R": schema})

    def test_arrays_of_what_takes_no_bytes(self):
        for items in (
            "null",
            _record(name="Nothing"),
            _record("null", "null", name="Nulls"),
            {"type": "fixed", "name": "None", "size": 0},
        ):
            with self.assertRaisesRegex(ValueError, "of .* take no bytes"):
                _types(_array(items))

    def test_arrays_of_what_takes_bytes(self):
        for items in (
            "int",
            _ENUM,
            _array("int"),
            ["null"],
            ["null", "int"],
            ["int", "long"],
            ["int", "double"],
            ["int", "string"],
            {"type": "map", "values": "null"},
            _record("null", "int", name="One"),
        ):
            [found] = _types(_array(items))
            self.assertEqual(found, pa.list_(_types(items)[0]))

    def test_records_within_themselves(self):
        with self.assertRaisesRegex(ValueError, "type R is within itself"):
            _types("int", ["null", "R"])
        # One beside another of its type is not within it.
        pair = _record(_record("int", name="I"), "I", name="P")
        self.assertEqual(_types(pair, "P"), [_types(pair)[0]] * 2)

    def test_no_record(self):
        with self.assertRaisesRegex(ValueError, "it is of int32"):
            avro_types.arrow_schema("int", {})


if __name__ == "__main__":
    absltest.main()
