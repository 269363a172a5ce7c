# SPDX-License-Identifier: Apache-2.0
"""Files of text with malformed lines, and what is left of them."""

import numpy as np

import tf_ext

Field = tf_ext.data.Field
SCHEMA = tf_ext.data.Schema(
    [
        Field("label", "float32"),
        Field("number", "int64"),
        Field("price", "float32", default=-1.0),
        Field("name"),
        Field("tags", separator="|"),
    ],
    label="label",
)


def good_line(number, separator=","):
    """The line of the sample with a number that is unique to it."""
    tags = "|".join(f"t{number}-{i}" for i in range(number % 3))
    price = "" if number % 5 == 0 else f"{number / 4}"
    fields = [str(number % 2), str(number), price, f"näme{number}", tags]
    return separator.join(fields).encode()


def bad_lines(separator=","):
    """Pairs of a malformed line and its reason, of each kind."""
    line = good_line(-7, separator)
    by = separator.encode()
    cases = [
        (line.rsplit(by, 1)[0], "wrong number of fields"),
        (line + by + b"more", "wrong number of fields"),
        (line.replace(b"-7", b"seven", 1), "bad number"),
        (line.replace(b"-7", b"9223372036854775808", 1), "bad number"),
        (line.replace(b"-1.75", b"1.2.3"), "bad number"),
        (line.replace(b"-1.75", b"nan"), "bad number"),
        (line.replace(b"-1.75", b"1e39"), "bad number"),
        (by + line.split(by, 1)[1], "missing value"),
        (line.replace(b"n\xc3\xa4", b"n\xc3"), "invalid UTF-8"),
        (line.replace(b"me", b"m\0e"), "NUL byte"),
        (line.replace(b"me", b"m\re"), "carriage return"),
        (line.replace(b"me", b"x" * 10_000_000), "line above 1 MiB"),
    ]
    if separator == ",":
        cases += [
            (line.replace(b"n\xc3", b'"n\xc3'), "wrong quotes"),
            (line.replace(b"me", b'm"e'), "wrong quotes"),
            (line.replace(b"n\xc3\xa4me-7", b'"a"b"c"'), "wrong quotes"),
        ]
    return cases


def write_broken(path, records, separator=",", every=100, seed=0):
    """Writes lines of which every n-th is malformed, each kind in turn.

    Returns:
      `(numbers, counts)`: of the well-formed lines, in order, and dict of the
      numbers of malformed lines by reason.
    """
    cases = bad_lines(separator)
    rng = np.random.default_rng(seed)
    broken = iter(range(10**9))
    numbers, counts = [], {}
    with open(path, "wb") as file:
        for begin in range(0, records, every):
            place = begin + int(rng.integers(every))
            for number in range(begin, begin + every):
                if number == place:
                    index = next(broken)
                    # One line of 10 MB is enough.
                    line, reason = cases[index % len(cases)]
                    if len(line) > 10**6 and index >= len(cases):
                        line, reason = cases[0]
                    counts[reason] = counts.get(reason, 0) + 1
                else:
                    line = good_line(number, separator)
                    numbers.append(number)
                file.write(line + b"\n")
    return numbers, dict(sorted(counts.items()))


def numbers_of(dataset):
    """The numbers of all records of a dataset that was read, in order."""
    return [n for x, _ in dataset for n in x["number"].numpy().tolist()]
