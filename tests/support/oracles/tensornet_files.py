# SPDX-License-Identifier: Apache-2.0
"""Dictionary files as TensorNet writes them."""

import gzip
import pathlib
import struct

import numpy as np

_BLOCKS = 8
# What follows the sign, by the kind of file: fields with an array for each
# weight, fields of one number.
ADAGRAD = ("accumulator", "show", "days")


def random_rows(seed, count, dim):
    """A dict of arrays `[n, ...]`, and signs of all bits."""
    rng = np.random.default_rng(seed)
    rows = {
        name: rng.normal(size=(count, dim)).astype(np.float32)
        for name in ("weights", "m", "v", "linear", "sums")
    }
    # As printed with six digits, which is how texts have them.
    for name, array in rows.items():
        flat = [np.float32(f"{one:g}") for one in array.ravel()]
        rows[name] = np.array(flat).reshape(array.shape)
    rows["accumulator"] = rng.integers(1, 99, count).astype(np.float32) / 8
    rows["show"] = rng.integers(1, 99, count).astype(np.float32) + 0.5
    rows["click"] = rng.integers(0, 9, count).astype(np.float32)
    rows["days"] = rng.integers(0, 9, count).astype(np.int32)
    rows["version"] = rng.integers(1, 9, count).astype(np.int32)
    signs = rng.integers(2**64, size=count, dtype=np.uint64)
    assert len(np.unique(signs)) == count
    return signs, rows


def _text(number):
    return str(number) if isinstance(number, np.int32) else f"{number:g}"


def _line(optimizer, sign, row, tail, with_dim):
    parts = [str(sign)]
    if optimizer == "AdaGrad":
        parts += [str(len(row["weights"]))] if with_dim else []
        parts += map(_text, row["weights"])
    else:
        slots = ("m", "v") if optimizer == "Adam" else ("linear", "sums")
        for numbers in zip(row["weights"], *(row[name] for name in slots)):
            parts += map(_text, numbers)
    return "\t".join([*parts, *(_text(row[name]) for name in tail)])


def _record(optimizer, sign, row, tail):
    arrays = {"AdaGrad": (), "Adam": ("m", "v"), "Ftrl": ("linear", "sums")}
    parts = [struct.pack("<Q", sign)]
    for name in ("weights", *arrays[optimizer], *tail):
        parts.append(row[name].tobytes())
    return b"".join(parts)


def save(
    directory,
    name,
    rows,
    optimizer="AdaGrad",
    mode="txt",
    tail=None,
    ranks=1,
    pattern="block_{}.gz",
    with_dim=True,
    line_end="\t",
):
    """Writes the files of a table.

    Args:
      directory: string, of a day.
      name: string, of the table.
      rows: `(signs, fields)`, as of `random_rows`.
      optimizer: string, TensorNet's name.
      mode: "txt" or "bin".
      tail: list of the fields of one number, in their order.
      ranks: int.
      pattern: string, the names of files.
      with_dim: bool, whether lines of AdaGrad begin with the dim.
      line_end: string, the end of a line of AdaGrad, with what does not follow.

    Returns:
      List of the files' paths.
    """
    signs, fields = rows
    if tail is None:
        tail = ADAGRAD if optimizer == "AdaGrad" else ("show",)
    dim = fields["weights"].shape[1]
    written = []
    for rank in range(ranks):
        folder = pathlib.Path(directory, "sparse_table", name, f"rank_{rank}")
        folder.mkdir(parents=True)
        for block in range(_BLOCKS):
            mine = [
                i
                for i, sign in enumerate(signs.tolist())
                if sign % ranks == rank and (sign >> 32) % _BLOCKS == block
            ]
            each = [
                (int(signs[i]), {key: one[i] for key, one in fields.items()})
                for i in mine
            ]
            if mode == "txt":
                end = line_end if optimizer == "AdaGrad" else ""
                lines = [f"opt_name:{optimizer}", f"dim:{dim}"] + [
                    _line(optimizer, *one, tail, with_dim) + end for one in each
                ]
                data = "".join(f"{one}\n" for one in [*lines, ""]).encode()
            else:
                records = [_record(optimizer, *one, tail) for one in each]
                data = struct.pack("<i", dim) + b"".join(records) + b"\n"
            path = folder / pattern.format(block)
            path.write_bytes(gzip.compress(data))
            written.append(path)
    return written
