"""The op that turns raw feature values into signs.

`tf_ext.feature_column` describes columns in the user's terms and calls it;
`tf_ext.hashing` gives the same signs in NumPy.
"""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>HashCategory")


def hash_category(
    values,
    row_splits=None,
    weights=None,
    *,
    namespaces,
    bucket_sizes=None,
    identity=None,
    part_counts=None,
    part_inputs=None,
    part_bucket_sizes=None,
    part_has_missing=None,
    part_missing=None,
    part_boundary_counts=None,
    part_boundaries=(),
    return_error=False,
    name=None,
):
    r"""Turns the values of many columns into signs at once.

    There are C columns. Each has one or more parts, and each part reads one of
    the inputs; the parts of the first column come first in the lists of parts,
    which have P entries, then those of the second, and so on.

    The sign of a text is `Fingerprint64(namespace + "\x1f" + text)`, where
    Fingerprint64 is FarmHash's. The text of a string is the string, of an
    integer its decimal text, of a number with boundaries the decimal text of
    how many of them are not above it. With a bucket size b the text is the
    decimal text of `Fingerprint64(text) mod b` instead. A column of several
    parts is their cross: it joins the parts' texts by "\x1e", for each way to
    pick one value of each part's bag, the last part running fastest; weights
    are multiplied.

    Args:
      values: list of the inputs: string, int64, int32 or float32, `[batch_size,
        ...]`, where the other dimensions are the bag, or `[n]` with row_splits.
        NaN is always missing.
      row_splits: list with int64 `[batch_size + 1]` for each input, the bags of
        its values: starts with 0, never falls, ends with n; None or `[0]` for
        an input without. None: no input has any.
      weights: list with a float32 weight for each value of each input; None or
        `[0]` for an input without. None: no input has any.
      namespaces: list of C strings. Columns of one namespace give one text one
        sign.
      bucket_sizes: list of C ints, the number of different signs of the column;
        0 for any. None: all 0.
      identity: list of C bools, whether integers are their own signs. None: all
        False.
      part_counts: list of C ints, the number of parts of the column, 1 to 64.
        None: all 1.
      part_inputs: list of P ints, the input that the part reads. None: each the
        input of its own position.
      part_bucket_sizes: list of P ints, the bucket size of a part of a cross; 0
        for none, and for the part of a column of one. None: all 0.
      part_has_missing: list of P bools, whether values are left out. None: all
        False.
      part_missing: list of P strings, the text of the value that is left out.
        None: all "".
      part_boundary_counts: list of P ints, the number of boundaries; 0 for
        none. Floats need at least one. None: all 0.
      part_boundaries: list of floats, the boundaries of all parts, rising
        within each.
      return_error: whether inputs whose sizes, row_splits or numbers of signs
        are refused become the output `error` instead of an exception. Types
        and ranks that are known to be wrong when a graph is built, and
        attributes, are always exceptions.
      name: optional name of the operation.

    Returns:
      A named tuple: `signs` int64 `[m]`, bag after bag of column after column;
      `sign_splits` int64 `[C * batch_size + 1]`, where bag b of column c is
      number `c * batch_size + b`; `sign_weights` float32 `[m]`, 1 for columns
      without weights, or `[0]` if no column has any; `error`, a string scalar:
      "", or with return_error what is wrong with the inputs. Unless it is "",
      m is 0, all `sign_splits` are 0, and batch_size is that of the first input
      that shows one, or 0 if none does or there would be more than 2^31 - 1
      bags.

    Raises:
      tf.errors.InvalidArgumentError: lists or inputs that do not fit together,
        or more than 2^31 - 1 signs.

    Example:
      >>> signs, sign_splits, _, _ = tf_ext.ops.hash_category(
      ...     [["ann", "bob"], [[5, 6], [5, 7]]], namespaces=["user", "item"])
      >>> sign_splits.numpy()
      array([0, 1, 2, 4, 6])
      >>> bool(signs[2] == signs[4])
      True
    """
    columns = len(namespaces)
    if part_counts is None:
        part_counts = [1] * columns
    parts = sum(part_counts)

    def or_default(attribute, size, default):
        return [default] * size if attribute is None else attribute

    return library().tf_ext_hash_category(
        values,
        _or_empty(row_splits, len(values), tf.int64),
        _or_empty(weights, len(values), tf.float32),
        namespaces=namespaces,
        bucket_sizes=or_default(bucket_sizes, columns, 0),
        identity=or_default(identity, columns, False),
        part_counts=part_counts,
        part_inputs=list(range(parts)) if part_inputs is None else part_inputs,
        part_bucket_sizes=or_default(part_bucket_sizes, parts, 0),
        part_has_missing=or_default(part_has_missing, parts, False),
        part_missing=or_default(part_missing, parts, ""),
        part_boundary_counts=or_default(part_boundary_counts, parts, 0),
        part_boundaries=part_boundaries,
        return_error=return_error,
        name=name,
    )


def _or_empty(tensors, size, dtype):
    """A list in which an empty vector stands for each tensor not given."""
    if tensors is None:
        tensors = [None] * size
    empty = None
    result = []
    for tensor in tensors:
        if tensor is None:
            if empty is None:
                empty = tf.zeros([0], dtype)
            tensor = empty
        result.append(tensor)
    return result
