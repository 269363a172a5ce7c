# SPDX-License-Identifier: Apache-2.0
"""What a program of the combination test consists of, and which of it meet."""

import dataclasses
import itertools
import json

# Each option that a user chooses, and the choices. The first one is the plain
# one: it is what a failing program is reduced to.
AXES = {
    "regime": (
        "none",
        "one_device",
        "one_worker",
        "mirrored",
        "two_workers",
        "three_workers",
        "servers",
    ),
    "model": ("functional", "subclassed", "nested", "listed", "signature"),
    "columns": (
        "ids",
        "weighted",
        "crossed",
        "buckets",
        "sequence",
        "optional",
        "times",
    ),
    "table": (
        "sgd",
        "adagrad",
        "default",
        "adam",
        "ftrl",
        "momentum",
        "float16",
        "evicted",
        "admitted",
        "shared",
        "several",
    ),
    "layer": (
        "none",
        "batch_normalization",
        "synchronized",
        "all_reduce",
        "clicks",
    ),
    "optimizer": (
        "sgd",
        "adam",
        "clipnorm",
        "global_clipnorm",
        "schedule",
        "accumulated",
        "skip",
        "scaled",
    ),
    "precision": ("float32", "mixed_float16", "mixed_bfloat16"),
    "loss": ("mean", "two_outputs", "weighted", "added", "regularized"),
    "data": ("dataset", "arrays", "hashed"),
    "samples": (12, 13, 15),
    "saved": (
        "none",
        "keras",
        "weights",
        "checkpoint",
        "exported",
        "served",
    ),
}

WORKERS = {"two_workers": 2, "three_workers": 3}
_ONE_REPLICA = ("none", "one_device", "one_worker", "servers")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: a choice on each axis, which are its attributes."""

    regime: str = "none"
    model: str = "functional"
    columns: str = "ids"
    table: str = "sgd"
    layer: str = "none"
    optimizer: str = "sgd"
    precision: str = "float32"
    loss: str = "mean"
    data: str = "dataset"
    samples: int = 12
    saved: str = "none"

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))

    def __repr__(self):
        chosen = ", ".join(
            f"{name}={value!r}"
            for name, value in dataclasses.asdict(self).items()
            if value != AXES[name][0]
        )
        return f"Program({chosen})"


def is_supported(program, is_keras_3):
    """Whether tf_ext and Keras support what meets in a program.

    Each line is a sentence of the documentation, except those that say that the
    program itself has no meaning.

    Args:
      program: Program.
      is_keras_3: bool, of the process.
    """
    p = program
    replicas = p.regime not in _ONE_REPLICA
    scales = p.precision == "mixed_float16" or p.optimizer == "scaled"
    refused = [
        # Optimizers.
        p.optimizer == "accumulated" and not is_keras_3,
        p.optimizer == "accumulated" and (replicas or p.regime == "servers"),
        scales and p.regime == "servers",
        p.optimizer == "skip" and p.regime == "servers",
        # Scaled gradients behind it overflow in one process, which leaves the
        # step out, but not in a replica's smaller share of them.
        p.precision == "mixed_float16"
        and p.layer in ("batch_normalization", "synchronized")
        and replicas,
        # Models.
        p.model == "listed" and p.data == "hashed",  # Features by key.
        p.model == "listed" and p.layer == "clicks",
        p.layer == "clicks" and p.columns == "sequence",  # cvm=True.
        # Keras 3 mixes the losses that layers add on several replicas.
        p.loss == "added"
        and p.regime == "mirrored"
        and p.layer in ("batch_normalization", "synchronized", "all_reduce")
        and is_keras_3,
        # Keras 3 cannot build such a model in `predict`.
        p.layer == "all_reduce"
        and p.regime == "mirrored"
        and p.model != "functional"
        and p.samples == 15
        and is_keras_3,
        # tf_keras does not update moving averages without samples.
        p.layer == "synchronized"
        and replicas
        and (p.samples == 13 or p.regime == "three_workers")
        and not is_keras_3,
        # Exports. docs/multi_worker.md and docs/parameter_servers.md.
        p.saved == "exported" and p.regime in (*WORKERS, "servers"),
        # Keras 3 exports no ragged inputs, and needs raw ones.
        p.saved == "exported" and p.columns in ("weighted", "sequence"),
        p.saved == "exported" and p.data == "hashed",
        # A batch's own mean has no meaning for single requests.
        p.layer == "all_reduce" and p.saved in ("exported", "served"),
    ]
    return not any(refused)


def pairwise(is_keras_3, fits=lambda program: True):
    """Programs in which each pair of choices meets that can.

    They are ordered: each next one has the most pairs that none before it has,
    among those that are found greedily, so that the first ones cover most.

    Args:
      is_keras_3: bool, of the process.
      fits: function of a Program, whether it may be among them.

    Returns:
      list of Program.
    """

    def allowed(program):
        return is_supported(program, is_keras_3) and fits(program)

    names = list(AXES)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in AXES[a]
        for y in AXES[b]
    }
    programs = []
    while missing:
        program = _next(missing, allowed)
        if program is None:
            break  # What is left cannot meet.
        programs.append(program)
        missing -= _pairs(program)
    return programs


def _pairs(program):
    return set(itertools.combinations(dataclasses.asdict(program).items(), 2))


def _next(missing, allowed):
    """A program with many of the missing pairs, or None if none is possible."""
    for first in sorted(missing, key=str):
        program = _complete(dict(first), missing, allowed)
        if program is not None:
            return program
        missing.discard(first)
    return None


def _complete(chosen, missing, allowed):
    """Adds to two choices, one axis after the other, what is missing most."""
    if not allowed(Program(**chosen)):
        return None
    for name in AXES:
        if name in chosen:
            continue
        options = [
            value
            for value in AXES[name]
            if allowed(Program(**{**chosen, name: value}))
        ]
        if not options:
            return None
        chosen[name] = max(
            options,
            key=lambda value: sum(
                pair in missing
                for pair in _pairs(Program(**{**chosen, name: value}))
                if (name, value) in pair
            ),
        )
    return Program(**chosen)
