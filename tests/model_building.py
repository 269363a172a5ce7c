"""What the tests that train models share."""

import numpy as np

from tf_ext import feature_column

INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max

# Signs that other tables reserve, among them.
EDGE_SIGNS = (0, -1, -2, INT64_MIN, INT64_MAX)


def generator(test, seed=17):
    """A NumPy random generator whose seed a failed test's output shows."""
    print(f"{test.id()}: seed {seed}")
    return np.random.default_rng(seed)


def id_column(key, combiner="sum", **kwargs):
    """A column whose int64 values are the signs."""
    return feature_column.category_column(
        key, hashing="identity", combiner=combiner, **kwargs
    )


def rows_of(table, field="weights"):
    """A field of all rows: `{sign: [count]}`."""
    signs, fields = table.export_rows()
    return dict(zip(signs.tolist(), fields[field]))
