# SPDX-License-Identifier: Apache-2.0
"""Looks embeddings up in Parquet files, in a process without TensorFlow.

    split_lookup_program.py JSON OUT

JSON is a list of `{"version": folder, "batch": {feature: bags}}`, bags being a
list of values for each sample. OUT.npz gets "INDEX/INPUT" for each case and
embedding.
"""

import itertools
import json
import math
import pathlib
import sys

import numpy as np
from pyarrow import parquet

from tf_ext import hashing

_COMBINED = {
    "sum": lambda vectors, weights: vectors.sum(0),
    "mean": lambda vectors, weights: vectors.sum(0) / weights.sum(),
    "sqrtn": lambda vectors, weights: (
        vectors.sum(0) / np.sqrt((weights**2).sum())
    ),
    "max": lambda vectors, weights: vectors.max(0),
}


class _Store:
    """The rows of one file."""

    def __init__(self, path):
        file = parquet.read_table(path)
        about = {k.decode(): v for k, v in file.schema.metadata.items()}
        assert int(about["tf_ext.hash_version"]) == hashing.HASH_VERSION
        self.dim = int(about["tf_ext.dim"])
        self._config = about["tf_ext.config"].decode()
        self.identities = {
            how for _, how in json.loads(about["tf_ext.columns"])
        }
        vectors = file["vector"].combine_chunks().flatten().to_numpy()
        vectors = vectors.reshape(-1, self.dim)
        self._rows = dict(zip(file["sign"].to_pylist(), vectors, strict=True))

    def vectors(self, signs):
        found = hashing.initial_rows(self._config, signs)
        shared = hashing.shared_signs(self._config, signs).tolist()
        for place, its_signs in enumerate(zip(signs, shared)):
            for sign in its_signs:
                if sign in self._rows:
                    found[place] = self._rows[sign]
                    break
        return found


def _bag(part, batch, sample):
    """The values of a feature and their weights, without what is missing."""
    if part["key"] not in batch:
        assert part["optional"]
        return []
    values = batch[part["key"]][sample]
    weights = [1.0] * len(values)
    if part["weights"] is not None:
        weights = batch[part["weights"]][sample]
    missing = part["missing"]
    return [
        (value, weight)
        for value, weight in zip(values, weights, strict=True)
        if value != missing
        and not (isinstance(value, float) and math.isnan(value))
    ]


def _signs(embedding, batch, sample):
    """The signs of a column's bag and their weights."""
    config = embedding["config"]
    parts = config.get("columns", [config])
    bags = list(
        itertools.product(*[_bag(part, batch, sample) for part in parts])
    )
    weights = [math.prod(w for _, w in one) for one in bags]
    if not bags:
        return [], weights
    values = [[one[i][0] for one in bags] for i in range(len(parts))]
    if len(parts) > 1:
        signs = hashing.hash_cross(
            values,
            config["namespace"],
            bucket_size=config["bucket_size"],
            part_bucket_sizes=[part["bucket_size"] for part in parts],
            part_boundaries=[part["boundaries"] for part in parts],
        )
    elif config["hashing"] == "identity":
        signs = np.array(values[0])
    else:
        signs = hashing.hash_category(
            values[0],
            config["namespace"],
            bucket_size=config["bucket_size"],
            boundaries=config["boundaries"],
        )
    return signs.tolist(), weights


def _embed(embedding, store, batch, samples):
    rows = np.zeros([samples, store.dim], np.float32)
    for sample in range(samples):
        signs, weights = _signs(embedding, batch, sample)
        if signs:
            weights = np.array(weights, np.float32)
            vectors = store.vectors(signs) * weights[:, np.newaxis]
            combine = _COMBINED[embedding["config"]["combiner"]]
            rows[sample] = combine(vectors, weights)
    return rows


def main(cases, out):
    """See the module's docstring."""
    results = {}
    for index, case in enumerate(json.loads(pathlib.Path(cases).read_text())):
        folder = pathlib.Path(case["version"])
        manifest = json.loads(
            (folder / "assets.extra" / "manifest.json").read_text()
        )
        stores = {
            table["file"]: _Store(folder / table["file"])
            for table in manifest["tables"]
        }
        samples = len(next(iter(case["batch"].values())))
        for one in manifest["embeddings"]:
            results[f"{index}/{one['input']}"] = _embed(
                one, stores[one["file"]], case["batch"], samples
            )
    np.savez(out, **results)
    assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
