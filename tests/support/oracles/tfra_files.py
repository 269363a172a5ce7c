# SPDX-License-Identifier: Apache-2.0
"""Files as TensorFlow Recommenders Addons 0.8.1 writes them."""

import pathlib

import numpy as np
import tensorflow as tf


def of_shards(keys, values, shards):
    """`(keys, values)` of each of some hash tables, by the key modulo them."""
    if keys.dtype == object:
        ids = tf.strings.to_hash_bucket_fast(keys, shards).numpy()
    else:
        ids = keys % shards
    return [(keys[ids == i], values[ids == i]) for i in range(shards)]


def save_to_file_system(path, name, keys, values, shards=1, ranks=1):
    """The files of a variable: all ranks have as many hash tables.

    Args:
      path: string, a directory.
      name: string, of the variable.
      keys: `[n]`, integers.
      values: `[n, dim]`.
      shards: int, the hash tables of a rank.
      ranks: int.

    Returns:
      List of the paths of files, the keys of a table before its values.
    """
    base = name.replace("/", "_")
    written = []
    for rank, mine in enumerate(of_shards(keys, values, ranks)):
        for shard, table in enumerate(of_shards(*mine, shards)):
            part = f"{base}_mht_{shard + 1}of{shards}_rank{rank}_size{ranks}"
            for kind, array in zip(("keys", "values"), table):
                file = pathlib.Path(path, f"{part}-{kind}")
                file.write_bytes(array.tobytes())
                written.append(file)
    return written


def save_checkpoint(prefix, variables, owner="model/params", shards=1, **more):
    """A checkpoint, with tables as tracked objects.

    Args:
      prefix: string.
      variables: dict of `(keys, values)` by name.
      owner: string, the path of the object that has them; None for what
        tf.compat.v1.train.Saver writes.
      shards: int, the hash tables of each.
      **more: other tensors, by name, with "__" for "/".
    """
    tensors = {name.replace("__", "/"): value for name, value in more.items()}
    for name, arrays in variables.items():
        escaped = name.replace(".", "..").replace("/", ".S")
        for i, (keys, values) in enumerate(of_shards(*arrays, shards)):
            base = f"{owner}/tables_of_{escaped}/{i}/.ATTRIBUTES/table"
            if owner is None:
                base = f"{name.replace('/', '_')}_mht_{i + 1}of{shards}"
            tensors[f"{base}-keys"] = keys
            tensors[f"{base}-values"] = values
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(one) for one in tensors.values()],
    )


def random_rows(seed, count, dim, dtype=np.float32, keys=np.int64):
    """`(keys, values)` of distinct keys, both signs among integers."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, dim)).astype(dtype)
    if keys is object:
        # Of lengths of one and of two bytes, and none.
        names = [f"{i}" + "x" * int(rng.integers(300)) for i in range(1, count)]
        return np.array([b"", *(n.encode() for n in names)], object), values
    limits = np.iinfo(keys)
    found = rng.integers(limits.min, limits.max, 2 * count, keys, endpoint=True)
    return rng.permutation(np.unique(found))[:count], values
