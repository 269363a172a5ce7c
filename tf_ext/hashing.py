# SPDX-License-Identifier: Apache-2.0
r"""The signs of feature values, in NumPy.

These functions give the signs that `tf_ext.feature_column` gives in a model, so
that rows can be looked up, filled or compared from outside; and the rows that
signs read which a table does not hold. They need no TensorFlow.

The sign of a value is `Fingerprint64(namespace + "\x1f" + text)`, as a signed
number. Fingerprint64 is FarmHash's, which never changes and which BigQuery
(FARM_FINGERPRINT), Guava and ClickHouse have too. A column's namespace is its
key, unless it names another.

  - The text of a string is the string, as UTF-8.
  - The text of an integer is its decimal text: 5 and "5" are one feature.
  - The text of a number with boundaries is the decimal text of its bucket.
  - With `bucket_size` the text is the decimal text of `Fingerprint64(text) mod
    bucket_size` instead.
  - The text of a cross is its parts' texts, joined by "\x1e".
"""

import itertools
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._checks import refuse

__all__ = [
    "HASH_VERSION",
    "fingerprint64",
    "hash_category",
    "hash_cross",
    "initial_rows",
    "shared_signs",
]


def __dir__() -> list[str]:
    return sorted(__all__)


HASH_VERSION = _core.HASH_VERSION
"""The version of the definition of signs above."""


def fingerprint64(values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """FarmHash's Fingerprint64 of strings or bytes.

    Args:
      values: str or bytes, or an array of them (or what `np.asarray` takes).
        A str is taken as UTF-8. NumPy strips trailing zero bytes from strings
        of fixed size; use an array of objects to keep them.

    Returns:
      int for a single str or bytes; else a uint64 array of the shape of
      `values`.

    Raises:
      ValueError: something is neither str nor bytes.

    References:
      - https://github.com/google/farmhash

    Example:
      >>> tf_ext.hashing.fingerprint64("2applefalse")
      2794438866806483259
      >>> tf_ext.hashing.fingerprint64(["foo", ""])
      array([ 6150913649986995171, 11160318154034397263], dtype=uint64)
    """
    if isinstance(values, str | bytes):
        return _core.fingerprint64(values)
    return _core.fingerprint64(np.asarray(values))


def hash_category(
    values: npt.ArrayLike,
    namespace: str,
    *,
    bucket_size: int | None = None,
    boundaries: Sequence[float] | None = None,
) -> npt.NDArray[np.int64]:
    """The signs of a column's values.

    Args:
      values: array of str, bytes, integers, booleans, or floats with boundaries
        (or what `np.asarray` takes). Booleans are 0 and 1; floats are rounded
        to float32, as in the model.
      namespace: str or bytes, the column's namespace: its key, unless it names
        another.
      bucket_size: int, at least 1: the number of different signs. None: any.
      boundaries: rising list of finite floats: the text of a number is the
        number of boundaries that are not above it. Floats need at least one;
        those nearer to 0 than 1.2e-38 are 0.

    Returns:
      int64 array of the shape of `values`.

    Raises:
      ValueError: an argument is not as above, or a float is NaN, which is
        missing and has no sign.

    Example:
      >>> tf_ext.hashing.hash_category(["foo", "5"], "user")
      array([9103845330217157765, 2904937300852589665])
      >>> tf_ext.hashing.hash_category([[5]], "user")
      array([[2904937300852589665]])
      >>> signs = tf_ext.hashing.hash_category(
      ...     [17.5, 18.0], "age", boundaries=[18.0, 65.0])
      >>> bool(np.all(signs == tf_ext.hashing.hash_category([0, 1], "age")))
      True
    """
    with _quiet_rounding():
        return _core.hash_category(
            _to_values(values, boundaries),
            namespace,
            _bucket_size("hash_category", "bucket_size", bucket_size),
            _boundaries("hash_category", "boundaries", boundaries),
        )


def hash_cross(
    values: Sequence[npt.ArrayLike],
    namespace: str,
    *,
    bucket_size: int | None = None,
    part_bucket_sizes: Sequence[int | None] | None = None,
    part_boundaries: Sequence[Sequence[float] | None] | None = None,
) -> npt.NDArray[np.int64]:
    """The signs of a cross, one for each element of the arrays.

    For bags of several values call it with their Cartesian product, in which
    the last part varies fastest.

    Args:
      values: list of at least two arrays of one shape, one for each part, of
        what `hash_category` takes.
      namespace: str or bytes, the cross's namespace: its parts' namespaces
        joined by "_X_", unless it names another.
      bucket_size: int, at least 1: the number of different signs. None: any.
      part_bucket_sizes: list with an int or None for each part: the number of
        different texts of the part. None: any, for all of them.
      part_boundaries: list with the boundaries or None for each part. None:
        none, for all of them.

    Returns:
      int64 array of the shape of each of `values`.

    Raises:
      ValueError: an argument is not as above, or a float is NaN.

    Example:
      >>> tf_ext.hashing.hash_cross([["foo"], [5]], "user_X_item")
      array([3580502377255879096])
    """
    if part_bucket_sizes is None:
        part_bucket_sizes = [None] * len(values)
    if part_boundaries is None:
        part_boundaries = [None] * len(values)
    # Of another length, they are refused below.
    padded = itertools.chain(part_boundaries, itertools.repeat(None))
    with _quiet_rounding():
        return _core.hash_cross(
            [_to_values(array, own) for array, own in zip(values, padded)],
            namespace,
            _bucket_size("hash_cross", "bucket_size", bucket_size),
            [
                _bucket_size("hash_cross", f"part_bucket_sizes[{i}]", size)
                for i, size in enumerate(part_bucket_sizes)
            ],
            [
                _boundaries("hash_cross", f"part_boundaries[{i}]", boundaries)
                for i, boundaries in enumerate(part_boundaries)
            ],
        )


def initial_rows(config: str, signs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The rows that signs read which a table does not hold.

    Of tables with `unknown="shared"`, these are the rows of `shared_signs` if
    the table does not hold them either.

    Args:
      config: string, the table's configuration, `key=value` lines: what
        snapshots and the Parquet files of `tf_ext.serving.export_split` have.
      signs: int64 `[...]`; a uint64 is taken by its bits.

    Returns:
      float32 `[..., dim]`, with the same bits as in the table.

    Raises:
      ValueError: a configuration of no table, or signs that are not integers of
        up to 64 bits.

    Example:
      >>> table = tf_ext.SparseTable("user", dim=2, initializer="normal")
      >>> rows = tf_ext.hashing.initial_rows(table.rows.config, [7, -1])
      >>> bool(np.all(rows == table.pull([7, -1])))
      True
    """
    return _core.initial_rows(config, _to_signs("initial_rows", signs))


def shared_signs(config: str, signs: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The signs of the rows that signs read which a table does not hold.

    Args:
      config: string, as of `initial_rows`.
      signs: int64 `[...]`; a uint64 is taken by its bits.

    Returns:
      int64 `[...]`: of tables with `unknown="shared"` the signs of the shared
      rows, which are among the table's rows once they have been trained; of
      others the signs themselves.

    Raises:
      ValueError: as of `initial_rows`.

    Example:
      >>> table = tf_ext.SparseTable(
      ...     "user", dim=2, unknown="shared", unknown_buckets=10)
      >>> tf_ext.hashing.shared_signs(
      ...     table.rows.config, [7, 3]) == table.unknown_ids[[7, 3]]
      array([ True,  True])
    """
    return _core.shared_signs(config, _to_signs("shared_signs", signs))


def _to_signs(function: str, signs: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = _to_array(signs)
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"Argument `signs` of {function} must be integers of up to 64 "
            f"bits. Received: signs={signs!r}"
        )
    # NumPy wraps a uint64 around, to the number of the same bits.
    return array.astype(np.int64)


def _quiet_rounding() -> np.errstate:
    """No errors of NumPy for floats beyond float32, which become infinite."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore")


def _to_array(values: npt.ArrayLike) -> npt.NDArray[typing.Any]:
    array = np.asarray(values)
    if array.size == 0 and not hasattr(values, "dtype"):
        # NumPy makes an array of floats from an empty list.
        return array.astype(np.int64)
    return array


def _to_values(
    values: npt.ArrayLike, boundaries: Sequence[float] | None
) -> npt.NDArray[typing.Any]:
    array = _to_array(values)
    if array.dtype == np.bool_:
        return array.astype(np.int64)
    if array.dtype.kind == "u" and array.itemsize == 8:  # Of any byte order.
        # Texts, as the core has no number of this type.
        return array.astype(np.str_ if boundaries is None else np.float32)
    return array


def _bucket_size(function: str, name: str, bucket_size: int | None) -> int:
    """The bucket size as the core takes it: 0 (unbounded) for None."""
    if bucket_size is None:
        return 0
    if (
        isinstance(bucket_size, bool | np.bool_)
        or not isinstance(bucket_size, int | np.integer)
        or not 1 <= bucket_size < 2**63
    ):
        refuse(
            function, name, "an int from 1 to 2^63 - 1, or None", bucket_size
        )
    return int(bucket_size)


def _boundaries(
    function: str, name: str, boundaries: Sequence[float] | None
) -> list[float]:
    if boundaries is None:
        return []
    array = np.asarray(boundaries)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf":
        refuse(
            function,
            name,
            "a list of at least one number, or None",
            boundaries,
        )
    return array.astype(np.float32).tolist()
