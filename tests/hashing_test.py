# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from ops_util import INT64_MAX, INT64_MIN, run_python

import tf_ext
from tf_ext import hashing, initializers

SEED = 20240501


def _tensorflow_fingerprints(texts):
    """TensorFlow's 64 bits, of which it gives 63 at a time at most."""
    power, prime = 2**62, 2**61 - 1
    by_power = tf.strings.to_hash_bucket_fast(texts, power).numpy().tolist()
    by_prime = tf.strings.to_hash_bucket_fast(texts, prime).numpy().tolist()
    fingerprints = []
    for low, rest in zip(by_power, by_prime, strict=True):
        [value] = [
            value for value in range(low, 2**64, power) if value % prime == rest
        ]
        fingerprints.append(value)
    return fingerprints


def _sign(namespace, text):
    """The definition, in Python."""
    if isinstance(text, str):
        text = text.encode()
    unsigned = hashing.fingerprint64(namespace.encode() + b"\x1f" + text)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _bucket(text, size):
    return str(hashing.fingerprint64(text) % size)


class FingerprintTest(parameterized.TestCase):
    def test_is_tensorflows_for_every_length_to_1024(self):
        generator = np.random.default_rng(SEED)
        texts = [generator.bytes(n) for n in range(1025) for _ in range(4)]
        found = hashing.fingerprint64(np.array(texts, object)).tolist()
        self.assertEqual(found, _tensorflow_fingerprints(texts), f"seed {SEED}")

    @parameterized.named_parameters(
        # The examples of BigQuery's reference of FARM_FINGERPRINT.
        ("of_bigquery_1", "1footrue", -1541654101129638711),
        ("of_bigquery_2", "2applefalse", 2794438866806483259),
        ("of_bigquery_3", "3true", -4880158226897771312),
        # The example of Amazon Redshift's reference of farmFingerprint64.
        ("of_redshift", "Amazon Redshift", 8085098817162212970),
    )
    def test_documented_value(self, text, expected):
        for value in (text, text.encode()):
            self.assertEqual(hashing.fingerprint64(value), expected % 2**64)
        array = hashing.fingerprint64([text])
        self.assertEqual(array.dtype, np.uint64)
        self.assertEqual(array.astype(np.int64).tolist(), [expected])

    def test_arrays_of_all_kinds_keep_their_shape(self):
        texts = [["a", "günstig"], ["", "x" * 100]]
        expected = [[hashing.fingerprint64(t) for t in row] for row in texts]
        encoded = [[t.encode() for t in row] for row in texts]
        for array in (
            texts,
            encoded,
            np.array(texts),
            np.array(encoded),
            np.array(texts, object),
            np.array(encoded, object),
            np.array(texts).T.copy().T,
        ):
            self.assertEqual(hashing.fingerprint64(array).tolist(), expected)

    @parameterized.named_parameters(
        ("numbers", [1], "values must be strings or bytes, but its dtype is"),
        ("none", None, "values at position 0 must be str or bytes, but is of"),
        (
            "mixed_objects",
            np.array(["a", 5], object),
            "values at position 1 must be str or bytes, but is of type int.",
        ),
        ("surrogate", "\ud800", "text has a lone surrogate"),
        ("surrogate_in_array", ["a", "\ud800"], "values at position 1 has a"),
    )
    def test_refuses_(self, values, message):
        with self.assertRaisesRegex(ValueError, message):
            hashing.fingerprint64(values)


class HashCategoryTest(parameterized.TestCase):
    def test_denormal_numbers_are_zero(self):
        # As they are in the threads of TensorFlow.
        values = [-1.2e-38, -1e-38, -1e-45, 0.0, 1e-45, 1e-38, 1.2e-38]
        found = hashing.hash_category(values, "age", boundaries=[0, 1.2e-38])
        buckets = hashing.hash_category(["0", *["1"] * 5, "2"], "age")
        self.assertEqual(found.tolist(), buckets.tolist())
        for boundaries in ([-1e-40, 1e-40], [0.0, 1e-40]):
            with self.assertRaisesRegex(ValueError, "do not increase"):
                hashing.hash_category([0.0], "age", boundaries=boundaries)

    def test_fixed_vectors(self):
        # These numbers are in people's tables: they never change.
        self.assertEqual(hashing.HASH_VERSION, 1)
        self.assertEqual(
            hashing.hash_category(["foo", "", "5"], "user").tolist(),
            [9103845330217157765, -2611212750099400506, 2904937300852589665],
        )
        self.assertEqual(
            hashing.hash_category([5, -1, INT64_MIN], "user").tolist(),
            [2904937300852589665, -7166145216217607555, 3047804191237820746],
        )
        self.assertEqual(
            hashing.hash_category(
                ["foo", "", "5"], "user", bucket_size=1000
            ).tolist(),
            [7759084036343930808, -3568718581718283951, 7641086415536564579],
        )
        self.assertEqual(
            hashing.hash_category(
                [17.5, 18.0, 99.0], "age", boundaries=[18.0, 65.0]
            ).tolist(),
            [3190728806797746854, 3500444406002511507, -6105391199902481706],
        )

    def test_strings_are_hashed_with_their_namespace(self):
        texts = ["a", "", "günstig", "\x1f", "a\0b", "x" * 1000]
        found = hashing.hash_category(np.array(texts, object), "user")
        self.assertEqual(found.dtype, np.int64)
        self.assertEqual(found.tolist(), [_sign("user", t) for t in texts])
        self.assertNotEqual(
            found.tolist(),
            hashing.hash_category(np.array(texts, object), "item").tolist(),
        )

    def test_trailing_zero_bytes_are_kept_in_objects(self):
        found = hashing.hash_category(np.array([b"a\0", b"\0"], object), "n")
        self.assertEqual(
            found.tolist(), [_sign("n", b"a\0"), _sign("n", b"\0")]
        )

    @parameterized.named_parameters(
        (dtype, dtype)
        for dtype in "int8 int16 int32 int64 uint8 uint16 uint32 >i4".split()
    )
    def test_integers_hash_as_their_decimal_text(self, dtype):
        info = np.iinfo(dtype)
        numbers = np.array([5, 0, info.min, info.max], dtype)
        self.assertEqual(
            hashing.hash_category(numbers, "n").tolist(),
            hashing.hash_category(numbers.astype(str), "n").tolist(),
        )

    def test_bytes_and_text_namespaces_are_the_same(self):
        self.assertEqual(
            hashing.hash_category([1], "günstig"),
            hashing.hash_category([1], "günstig".encode()),
        )

    def test_buckets(self):
        texts = ["foo", "bar", "5"]
        expected = [_sign("n", _bucket(t, 7)) for t in texts]
        found = hashing.hash_category(texts, "n", bucket_size=np.int64(7))
        self.assertEqual(found.tolist(), expected)
        self.assertLen(
            set(
                hashing.hash_category(
                    np.arange(1000), "n", bucket_size=7
                ).tolist()
            ),
            7,
        )

    @parameterized.named_parameters(
        (dtype, dtype) for dtype in ("float16", "float32", "float64", "int64")
    )
    def test_boundaries_are_as_in_tensorflow(self, dtype):
        values = np.arange(-20, 20).astype(dtype)
        boundaries = [-10, 0, 0.5, 10]
        buckets = tf.raw_ops.Bucketize(
            input=values.astype("float32"), boundaries=boundaries
        ).numpy()
        self.assertEqual(
            hashing.hash_category(values, "n", boundaries=boundaries).tolist(),
            hashing.hash_category(buckets, "n").tolist(),
        )

    @parameterized.named_parameters(
        ("scalar", 5, ()),
        ("matrix_not_contiguous", np.arange(6).reshape(2, 3).T, (3, 2)),
        ("empty_list", [], (0,)),
        ("no_columns", np.zeros([2, 0], np.int64), (2, 0)),
    )
    def test_shape_of_(self, values, shape):
        found = hashing.hash_category(values, "n")
        self.assertEqual(found.shape, shape)
        self.assertEqual(
            found.ravel().tolist(),
            [_sign("n", str(v)) for v in np.ravel(values)],
        )

    @parameterized.named_parameters(
        ("complex", dict(values=[1j]), "values must be strings, bytes, int"),
        ("dates", dict(values=np.array(["2020"], "M8[Y]")), "dtype is datetim"),
        (
            "floats_without_boundaries",
            dict(values=[1.5]),
            "has an input of type float, which needs boundaries",
        ),
        (
            "nan",
            dict(values=[1, np.nan], boundaries=[1]),
            "values has NaN at position 1, which is missing and has no sign",
        ),
        (
            "strings_with_boundaries",
            dict(values=["1"], boundaries=[1]),
            "has boundaries, which need numbers, but its input is of type str",
        ),
        (
            "falling_boundaries",
            dict(values=[1], boundaries=[2, 1.5]),
            "do not increase: 2 and then 1.5 at position 1",
        ),
        (
            "infinite_boundary",
            dict(values=[1], boundaries=[0, np.inf]),
            "has the boundary inf at position 1",
        ),
        (
            "no_boundaries",
            dict(values=[1], boundaries=[]),
            "`boundaries` of hash_category must be a list of at least one "
            "number, or None. Received: ",
        ),
        (
            "bucket_size_0",
            dict(values=[1], bucket_size=0),
            "`bucket_size` of .* must be an int from 1 to 2.63 - 1, or None",
        ),
        (
            "bucket_size_true",
            dict(values=[1], bucket_size=True),
            "bucket_size=True",
        ),
        ("bucket_size_2_63", dict(values=[1], bucket_size=2**63), "=9223"),
        (
            "namespace_5",
            dict(values=[1], namespace=5),
            "namespace must be str or bytes, but is of type int",
        ),
    )
    def test_refuses_(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            hashing.hash_category(**{"namespace": "n", **arguments})

    def test_threads_at_the_same_time(self):
        texts = np.array([str(i) for i in range(20_000)], object)
        expected = hashing.hash_category(texts, "n").tolist()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for found in pool.map(
                lambda _: hashing.hash_category(texts, "n"), range(8)
            ):
                self.assertEqual(found.tolist(), expected)


class HashCrossTest(parameterized.TestCase):
    def test_joins_texts_in_order(self):
        found = hashing.hash_cross(
            [["a", "b"], [5, -1], [0.5, 2.5]],
            "x",
            part_boundaries=[None, None, [1.0, 2.0]],
        )
        self.assertEqual(
            found.tolist(),
            [_sign("x", "a\x1e5\x1e0"), _sign("x", "b\x1e-1\x1e2")],
        )

    def test_buckets_of_parts_and_of_the_cross(self):
        joined = _bucket("a", 10) + "\x1e5"
        found = hashing.hash_cross(
            [["a"], [5]], "x", bucket_size=77, part_bucket_sizes=[10, None]
        )
        self.assertEqual(found.tolist(), [_sign("x", _bucket(joined, 77))])

    @parameterized.named_parameters(
        (
            "one_part",
            dict(values=[[1]]),
            "values must have at least 2 arrays to cross, but has 1",
        ),
        (
            "65_parts",
            dict(values=[[1]] * 65),
            "has 65 parts; 1 to 64 are allowed",
        ),
        (
            "other_shapes",
            dict(values=[[1], [1, 2]]),
            r"must have one shape, but values\[1\] has \(2,\) and values\[0\]",
        ),
        (
            "too_few_bucket_sizes",
            dict(values=[[1], [1]], part_bucket_sizes=[1]),
            "part_bucket_sizes must have 2 entries, one for each of values",
        ),
        (
            "too_few_boundaries",
            dict(values=[[1], [1]], part_boundaries=[[1.0]]),
            "part_boundaries must have 2 entries, one for each of values, but",
        ),
        (
            "part_bucket_size_0",
            dict(values=[[1], [1]], part_bucket_sizes=[None, 0]),
            r"part_bucket_sizes\[1\]` of hash_cross must be an int from 1",
        ),
        (
            "none_in_a_part",
            dict(values=[[1], np.array([None])]),
            r"values\[1\] at position 0 must be str or bytes, but is of type N",
        ),
    )
    def test_refuses_(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            hashing.hash_cross(namespace="x", **arguments)


class InitialRowsTest(parameterized.TestCase):
    @parameterized.parameters(
        initializers.Zeros(),
        initializers.Constant(0.25),
        initializers.Uniform(-2, 3),
        initializers.Normal(1.0, 0.5),
        initializers.TruncatedNormal(0.0, 2.0),
    )
    def test_have_the_bits_of_the_table(self, initializer):
        table = tf_ext.SparseTable(
            "user", dim=5, initializer=initializer, seed=2**64 - 1
        )
        signs = np.array([[0, 7, -1], [INT64_MIN, INT64_MAX, 1]])
        expected = table.pull(signs).numpy().tobytes()
        for given in (signs, signs.view(np.uint64), signs.tolist()):
            rows = hashing.initial_rows(table.rows.config, given)
            self.assertEqual(rows.shape, (2, 3, 5))
            self.assertEqual(rows.dtype, np.float32)
            self.assertEqual(rows.tobytes(), expected)
        self.assertEqual(
            hashing.initial_rows(table.rows.config, []).shape, (0, 5)
        )

    def test_refuses_what_is_no_table_or_no_sign(self):
        config = tf_ext.SparseTable("user", dim=1).rows.config
        with self.assertRaisesRegex(ValueError, "`signs` .* must be integers"):
            hashing.initial_rows(config, [0.5])
        with self.assertRaisesRegex(ValueError, "dim.*70000"):
            hashing.initial_rows(config.replace("dim=1", "dim=70000"), [1])
        with self.assertRaisesRegex(ValueError, "initializer"):
            hashing.initial_rows("name=user\ndim=1\n", [1])


class WithoutTensorFlowTest(absltest.TestCase):
    def test_hashing_does_not_import_tensorflow(self):
        script = """
import sys
import tf_ext
print(tf_ext.hashing.hash_category([5], "user")[0])
print("tensorflow" in sys.modules)
"""
        self.assertEqual(
            run_python(script).split(), ["2904937300852589665", "False"]
        )

    def test_int64_range(self):
        found = hashing.hash_category([INT64_MIN, INT64_MAX], "n").tolist()
        self.assertEqual(
            found, [_sign("n", str(INT64_MIN)), _sign("n", str(INT64_MAX))]
        )


if __name__ == "__main__":
    absltest.main()
