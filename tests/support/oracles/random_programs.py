# SPDX-License-Identifier: Apache-2.0
"""Random programs on a table and on the model of it, see `exact_table`."""

import os
import tempfile

import numpy as np
from models.sharded_tables import shards_on

import tf_ext
from oracles.exact_table import DIM, MOMENTUM, RATE, TableModel
from tf_ext import admission, eviction

_SEED = 7
ADMISSIONS = {
    "none": None,
    "count_1": admission.Count(1),
    "count_2": admission.Count(2),
    "count_3_forget": admission.Count(3, forget=4),
    "probability": admission.Probability(0.3),
}

# How often an action is drawn.
_ACTIONS = {
    "push": 40,
    "pull": 10,
    "import_rows": 3,
    "erase": 6,
    "clear": 3,
    "compact": 3,
    "decay": 4,
    "unseen": 6,
    "capacity": 8,
    "score": 8,
    "load": 4,
    "delta": 7,
}
_ON_STATISTICS = ("decay", "score")
_ON_LAST_SEEN = ("unseen",)


def odds(last_seen, statistics):
    """The names of the actions that a table allows: how often each is drawn."""
    left_out = set()
    if not statistics:
        left_out.update(_ON_STATISTICS)
    if not last_seen:
        left_out.update(_ON_LAST_SEEN)
    if not statistics and not last_seen:
        left_out.add("capacity")
    return {n: count for n, count in _ACTIONS.items() if n not in left_out}


def random_actions(rng, count, last_seen, statistics):
    """So many actions, among them each that the table allows."""
    weights = odds(last_seen, statistics)
    share = np.array(list(weights.values())) / sum(weights.values())
    rest = rng.choice(list(weights), count - len(weights), p=share).tolist()
    names = [*weights, *rest]
    rng.shuffle(names)
    return [(name, int(rng.integers(2**32))) for name in names]


def make_table(shards, policy, unknown, last_seen, statistics):
    """A table with so many shards in this process."""
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            dim=DIM,
            optimizer=tf_ext.optimizers.SparseSGD(
                float(RATE), momentum=float(MOMENTUM)
            ),
            seed=_SEED,
            eviction=eviction.Unseen(steps=5) if last_seen else None,
            admission=policy,
            unknown=unknown,
            statistics=["show", "click"][:statistics],
        )


class Program:
    """A random program.

    Args:
      rng: NumPy random generator.
      folder: string, for the files that it writes.
      shards: list of ints, the numbers of shards that the table has in turn.
      policy: the table's admission at first.
      last_seen: bool, whether rows hold when they were seen last.
      statistics: int, how many of "show" and "click" rows hold.
      size: int, the number of different signs.
      batch: int, the most signs of a batch.

    Attributes:
      admitted, evicted, forgotten: ints, how many rows and counters.
    """

    def __init__(
        self, rng, folder, shards, policy, last_seen, statistics, size, batch
    ):
        self._rng = rng
        self._folder = folder
        self._shards = shards
        self._batch = batch
        self._fixed = {"last_seen": last_seen, "statistics": statistics}
        others = rng.integers(-(2**62), 2**62, size)
        edges = [0, -1, -2, 2**63 - 1, -(2**63)]
        signs = np.unique(np.int64([*others, *edges]))
        rng.shuffle(signs)
        drawn = {
            "shards": shards[0],
            "policy": policy,
            "unknown": str(rng.choice(["initial", "zeros"])),
        }
        initial = make_table(1, None, "initial", False, 0).pull(signs).numpy()
        self._table = make_table(**drawn, **self._fixed)
        self._model = TableModel(signs, initial, _SEED, **drawn, **self._fixed)
        self._step = 1
        self._loads = 0
        self._base = self._follower = None
        self.admitted = self.evicted = self.forgotten = 0

    def run(self, actions):
        """Runs actions, and compares all rows after each.

        Args:
          actions: list of `(name, seed)`, such as `random_actions` returns.

        Raises:
          AssertionError: the table is not like the model.
        """
        for number, (name, seed) in enumerate(actions):
            self._rng = np.random.default_rng(seed)
            try:
                getattr(self, f"_{name}")()
                self._compare(self._table)
                self._compare_stats()
            except AssertionError as error:
                raise AssertionError(
                    f"action {number}, {name}, {self._model.policy}, step "
                    f"{self._step}: {error}"
                ) from error
        self._count()

    def _compare(self, table):
        model = self._model
        signs, fields = table.export_rows()
        order, wanted = np.argsort(signs), model.signs[model.present]
        np.testing.assert_array_equal(signs[order], np.sort(wanted))
        expected, wanted = model.fields(), np.argsort(wanted)
        assert fields.keys() == expected.keys(), (fields.keys(), expected)
        for name, values in fields.items():
            np.testing.assert_array_equal(
                values[order].view(np.int32),
                expected[name][wanted].view(np.int32),
                name,
            )

    def _compare_stats(self):
        model, stats = self._model, self._table.stats()
        found = [
            stats[name] for name in ("rows", "waiting", "admitted", "evicted")
        ]
        rows = np.count_nonzero(model.present)
        admitted = 0 if model.policy is None else model.admitted
        wanted = [rows, model.waiting(), admitted, model.evicted]
        np.testing.assert_array_equal(found, wanted, "stats")

    def _count(self):
        self.admitted += self._model.admitted
        self.evicted += self._model.evicted
        self.forgotten += self._model.forgotten

    def _draw(self, unique=False):
        count = int(self._rng.integers(0, self._batch + 1))
        at = self._rng.integers(0, len(self._model.signs), count)
        return np.unique(at) if unique else at

    def _push(self):
        # Steps of servers that do not wait for each other, and a gap.
        self._step += int(self._rng.integers(-2, 5))
        self._step += 8 * (self._rng.random() < 0.1)
        self._step = max(0, self._step)
        at = self._draw()
        # Sums of these do not depend on their order.
        gradients = self._rng.normal(size=[len(at), DIM])
        gradients = np.round(gradients * 64).astype(np.float32) / 64
        statistics, width = None, self._table.statistics_width
        if width and self._rng.random() < 0.5:
            statistics = self._rng.integers(0, 7, [len(at), width]) / 4
            statistics = statistics.astype(np.float32)
        updated = self._table.push(
            self._model.signs[at],
            gradients,
            step=self._step,
            statistics=statistics,
        )
        expected = self._model.push(at, gradients, self._step, statistics)
        assert updated == expected, f"{updated} updates, not {expected}"

    def _pull(self):
        at, training = self._draw(), bool(self._rng.integers(2))
        rows = self._table.pull(self._model.signs[at], training=training)
        np.testing.assert_array_equal(
            rows.numpy(), self._model.pull(at, training), "pulled"
        )

    def _import_rows(self):
        at = self._draw(unique=True)
        weights = self._rng.normal(size=[len(at), DIM]).astype(np.float32)
        self._table.import_rows(self._model.signs[at], {"weights": weights})
        self._model.import_rows(at, weights)

    def _erase(self):
        at = self._draw()
        erased = self._table.erase(self._model.signs[at])
        np.testing.assert_equal(erased, self._model.erase(at), "erased")

    def _clear(self):
        np.testing.assert_equal(
            self._table.clear(), self._model.clear(), "cleared"
        )

    def _compact(self):
        self._table.compact()
        np.testing.assert_equal(self._table.stats()["free_rows"], 0)

    def _decay(self):
        factor = float(self._rng.choice([0.3, 0.9, 1.0]))
        decayed = self._table.decay_statistics(factor)
        np.testing.assert_equal(decayed, self._model.decay(factor), "decayed")

    def _evict(self, policy, evict, *arguments):
        now = max(0, self._step + int(self._rng.integers(-3, 4)))
        evicted = self._table.evict(now, policy)
        np.testing.assert_equal(
            tuple(evicted), evict(*arguments, now=now), repr(policy)
        )

    def _unseen(self):
        steps = int(self._rng.integers(1, 30))
        self._evict(eviction.Unseen(steps), self._model.unseen, steps)

    def _capacity(self):
        by = ["last_seen"] * self._fixed["last_seen"]
        by += ["show"] * (self._fixed["statistics"] > 0)
        by = str(self._rng.choice(by))
        rows = int(self._rng.integers(0, len(self._model.signs)))
        policy = eviction.Capacity(rows, by=by)
        self._evict(policy, self._model.capacity, rows, by)

    def _score(self):
        weights = {"show_weight": float(self._rng.choice([1.0, 0.2]))}
        clicks = [0.0, 1.5] if self._fixed["statistics"] == 2 else [0.0]
        weights["click_weight"] = float(self._rng.choice(clicks))
        threshold = float(self._rng.choice([0.5, 2.0, 4.0]))
        require = str(self._rng.choice(["any", "all"]))
        unseen = None
        if self._fixed["last_seen"] and self._rng.integers(2):
            unseen = int(self._rng.integers(1, 20))
        policy = eviction.Score(
            threshold,
            unseen=None if unseen is None else eviction.Unseen(unseen),
            require=require,
            **weights,
        )
        arguments = (threshold, *weights.values(), unseen, require)
        self._evict(policy, self._model.score, *arguments)

    def _path(self):
        return os.path.join(tempfile.mkdtemp(dir=self._folder), "saved")

    def _reload(self, path):
        """Goes on with a table with other shards, and maybe other options."""
        self._count()
        self._loads += 1
        drawn = {
            "shards": self._shards[self._loads % len(self._shards)],
            "policy": self._model.policy,
            "unknown": self._model.unknown,
        }
        if self._rng.random() < 0.3:
            policies = list(ADMISSIONS.values())
            drawn["policy"] = policies[self._rng.integers(len(policies))]
            drawn["unknown"] = str(self._rng.choice(["initial", "zeros"]))
        self._table = make_table(**drawn, **self._fixed)
        self._table.load(path)
        self._model.become(**drawn)

    def _load(self):
        path = self._path()
        self._table.save(path)
        self._base = None
        self._reload(path)

    def _delta(self):
        """Begins a chain, goes on with it, or with a table loaded from it."""
        path = self._path()
        if self._base is None:
            self._table.save(path, incremental=True)
            self._follower = make_table(
                2, None, self._model.unknown, **self._fixed
            )
            self._follower.load(path)
            self._base = path
            return
        self._table.save(path, base=self._base)
        self._follower.apply_delta(path)
        self._compare(self._follower)
        self._base = path
        if self._rng.random() < 0.3:
            self._base = None
            self._reload(path)
