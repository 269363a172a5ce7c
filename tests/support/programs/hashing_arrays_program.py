# SPDX-License-Identifier: Apache-2.0
"""Hashes arrays of all kinds; a crash or a wrong sign ends the process.

Usage: hashing_arrays_program.py MODE

MODE is `kinds`; `raise`, the same with all floating-point errors of NumPy
raised; `threads`, the same from 16 threads; or `memory`, with little of it.
"""

import concurrent.futures
import resource
import sys
import warnings

import numpy as np

from tf_ext import _core, hashing

CONFIG = """\
dim=8
dtype=float32
hash_version=1
initializer=zeros
name=t
optimizer=sgd
seed=0
"""
BOUNDARIES = [-1.0, 0.0, 18.0]
SURROGATE = "\ud800"


def reference(value, namespace="n"):
    """The definition of a sign."""
    if isinstance(value, bytes | np.bytes_):
        text = bytes(value)
    elif isinstance(value, bool | np.bool_):
        text = b"1" if value else b"0"
    elif isinstance(value, float | np.floating):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = str(sum(np.float32(value) >= b for b in BOUNDARIES)).encode()
    else:
        text = str(value).encode()
    unsigned = hashing.fingerprint64(namespace.encode() + b"\x1f" + text)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def unaligned(array):
    """The values of a vector, at an odd address."""
    buffer = b"x" + array.tobytes()
    return np.frombuffer(buffer, array.dtype, offset=1)


def layouts(name, array):
    """The values of an array in memory of different layouts."""
    yield name, array
    yield f"{name} reversed", array[::-1]
    yield f"{name} strided", np.repeat(array, 3)[::3]
    yield f"{name} broadcast", np.broadcast_to(array, (2, *array.shape))
    yield f"{name} transposed", np.array([array, array]).T
    yield f"{name} 0-d", array[:1].reshape(())
    yield f"{name} empty", array[:0]
    yield f"{name} no columns", np.zeros([2, 0], array.dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    yield f"{name} read-only", read_only
    if array.dtype.kind not in "OT":
        yield f"{name} big-endian", array.astype(array.dtype.newbyteorder(">"))
        yield f"{name} unaligned", unaligned(array)


def good():
    """(name, array, keyword arguments) of what can be hashed."""
    for name, each in layouts("bool", np.array([True, False, True])):
        yield name, each, {}
    for dtype in "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split():
        info = np.iinfo(dtype)
        array = np.array([5, 0, info.min, info.max, 7], dtype)
        for name, each in layouts(dtype, array):
            yield name, each, {}
    extremes = [0.0, -0.0, 17.5, 18.0, np.inf, -np.inf, 1e300, -1e300, 1e-320]
    for dtype in ("float16", "float32", "float64", "longdouble"):
        with np.errstate(all="ignore"):
            array = np.array(extremes).astype(dtype)
        for name, each in layouts(dtype, array):
            yield name, each, {"boundaries": BOUNDARIES}
    texts = ["a", "", "günstig", "😀", "x" * 40]
    for name, array in (
        ("unicode", np.array(texts)),
        ("bytes", np.array([text.encode() for text in texts])),
        ("objects", np.array(texts, object)),
        ("bytes objects", np.array([b"a\0", b"\xff", b""], object)),
    ):
        for layout, each in layouts(name, array):
            yield layout, each, {}


def bad():
    """(name, array, keyword arguments) of what has no signs."""
    floats = {"boundaries": BOUNDARIES}
    yield "complex", np.array([1j]), floats
    yield "dates", np.array(["2020"], "M8[Y]"), {}
    yield "records", np.zeros(3, [("a", np.int64)]), {}
    yield "void", np.zeros(3, "V5"), {}
    yield "surrogates", np.array(["a", SURROGATE]), {}
    yield "surrogate objects", np.array(["a", SURROGATE], object), {}
    yield "mixed objects", np.array(["a", 5, None], object), {}
    yield "nested objects", np.array(["a", ["b"]], object), {}
    yield "nan", np.array([0.0, np.nan]), floats
    yield "floats without boundaries", np.array([0.5]), {}


def check(name, array, arguments):
    expected = [reference(value) for value in array.ravel()]
    found = hashing.hash_category(array, "n", **arguments)
    if found.shape != array.shape or found.ravel().tolist() != expected:
        raise SystemExit(f"{name}: {found} instead of {expected}")
    boundaries = arguments.get("boundaries")
    crossed = hashing.hash_cross(
        [array, array], "n", part_boundaries=[boundaries, boundaries]
    )
    if crossed.shape != array.shape:
        raise SystemExit(f"{name}: a cross of the shape {crossed.shape}")


def refuse(name, array, arguments):
    try:
        hashing.hash_category(array, "n", **arguments)
    except ValueError:
        return
    raise SystemExit(f"{name} was hashed")


def check_kinds():
    for name, array, arguments in good():
        check(name, array, arguments)
    for name, array, arguments in bad():
        refuse(name, array, arguments)
    with np.errstate(over="raise"):
        try:
            _core.hash_category(np.array([1e300]), "n", 0, BOUNDARIES)
        except FloatingPointError:
            return
    raise SystemExit("An error of NumPy was lost")


def limits():
    """Amounts of memory in bytes, of which the least are too little."""
    return range(0, 24 << 20, 512 << 10)


def under_limit(free, call):
    """What `call` returns, or MemoryError, with `free` bytes of memory left."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + free, hard))
    try:
        return call()
    except MemoryError:
        return MemoryError
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def check_memory():
    n = 1 << 18
    integers = np.arange(2 * n, dtype=np.int32)[::2]
    arrays = [
        (integers, {}),
        (integers.astype(np.float64), {"boundaries": BOUNDARIES}),
        (integers.astype("S8")[::2], {}),
        (integers[: n // 8].astype(str), {}),
        (np.array([*map(str, range(n // 8)), "é" * 1000], object), {}),
    ]
    calls = []
    for array, arguments in arrays:
        boundaries = arguments.get("boundaries")
        calls.append(
            lambda array=array, arguments=arguments: hashing.hash_category(
                array, "n", **arguments
            )
        )
        calls.append(
            lambda array=array, both=[boundaries] * 2: hashing.hash_cross(
                [array, array], "n", part_boundaries=both
            )
        )
    calls.append(lambda: hashing.fingerprint64(arrays[2][0]))
    calls.append(lambda: hashing.initial_rows(CONFIG, integers))
    # Without the conversion of tf_ext.hashing, which fails first.
    strided = np.arange(2 * n)[::2]
    calls.append(lambda: _core.initial_rows(CONFIG, strided))
    calls.append(lambda: _core.shard_of(strided, 3))
    refused = 0
    for call in calls:
        expected = call()
        for free in limits():
            found = under_limit(free, call)
            if found is MemoryError:
                refused += 1
            elif not np.array_equal(found, expected):
                raise SystemExit("Signs differ where memory is limited")
            del found
    print(refused)


def check_threads():
    cases = [*good(), *bad()]
    allowed = {name for name, _, _ in good()}

    def run(seed):
        for i in np.random.default_rng(seed).permutation(len(cases)):
            name, array, arguments = cases[i]
            (check if name in allowed else refuse)(name, array, arguments)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(16)))


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        check_memory()
    elif sys.argv[1] == "threads":
        check_threads()
    else:
        if sys.argv[1] == "raise":
            np.seterr(all="raise")
        check_kinds()
    print("done")
