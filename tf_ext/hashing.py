r"""The signs of feature values, in NumPy.

These functions give the signs that `tf_ext.feature_column` gives in a model, so
that rows can be looked up, filled or compared from outside. They need no
TensorFlow.

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

import numpy as np

from tf_ext import _core

__all__ = ["HASH_VERSION", "fingerprint64", "hash_category", "hash_cross"]

HASH_VERSION = _core.HASH_VERSION
"""The version of the definition of signs above."""


def fingerprint64(values):
    """FarmHash's Fingerprint64 of strings or bytes.

    Args:
      values: str or bytes, or an array of them (or what `np.asarray` takes).
        A str is taken as UTF-8. NumPy's texts of a fixed size end where only
        zero bytes follow; use an array of objects to keep those.

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


def hash_category(values, namespace, *, bucket_size=None, boundaries=None):
    """The signs of a column's values.

    Args:
      values: array of str, bytes, integers, or floats with boundaries (or what
        `np.asarray` takes). Integers must fit in int64; floats are rounded to
        float32, as in the model.
      namespace: str or bytes, the column's namespace: its key, unless it names
        another.
      bucket_size: int, at least 1: the number of different signs. None: any.
      boundaries: rising list of finite floats: the text of a number is how many
        of them are not above it. Floats need at least one.

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
    return _core.hash_category(
        _to_array(values),
        namespace,
        _bucket_size("bucket_size", bucket_size),
        _boundaries("boundaries", boundaries),
    )


def hash_cross(
    values,
    namespace,
    *,
    bucket_size=None,
    part_bucket_sizes=None,
    part_boundaries=None,
):
    """The signs of a cross, one for each place in the arrays.

    For bags of several values call it with their Cartesian product, in which
    the last part runs fastest.

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
    values = [_to_array(array) for array in values]
    if part_bucket_sizes is None:
        part_bucket_sizes = [None] * len(values)
    if part_boundaries is None:
        part_boundaries = [None] * len(values)
    return _core.hash_cross(
        values,
        namespace,
        _bucket_size("bucket_size", bucket_size),
        [
            _bucket_size(f"part_bucket_sizes[{i}]", size)
            for i, size in enumerate(part_bucket_sizes)
        ],
        [
            _boundaries(f"part_boundaries[{i}]", boundaries)
            for i, boundaries in enumerate(part_boundaries)
        ],
    )


def _to_array(values):
    array = np.asarray(values)
    if array.size == 0 and not hasattr(values, "dtype"):
        # NumPy takes an empty list for one of floats.
        return array.astype(np.int64)
    return array


def _bucket_size(name, bucket_size):
    """0, which the core takes for unbounded, for None."""
    if bucket_size is None:
        return 0
    if (
        isinstance(bucket_size, bool | np.bool_)
        or not isinstance(bucket_size, int | np.integer)
        or not 1 <= bucket_size < 2**63
    ):
        raise ValueError(
            f"{name} must be an int from 1 to 2^63 - 1, or None, but it is "
            f"{bucket_size!r}."
        )
    return int(bucket_size)


def _boundaries(name, boundaries):
    if boundaries is None:
        return []
    array = np.asarray(boundaries)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} must be a list of at least one number, or None, but it is "
            f"{boundaries!r}."
        )
    return array.astype(np.float32).tolist()
