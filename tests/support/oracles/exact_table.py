# SPDX-License-Identifier: Apache-2.0
"""An exact model in NumPy of a table whose rows come and go."""

import numpy as np

from tf_ext import admission

DIM = 3
RATE = np.float32(0.5)
MOMENTUM = np.float32(0.5)
"""Of the update rule, which is momentum."""

_NEVER = -1  # `last_seen` of rows that were not pushed.


def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _shard(signs, shards):
    """The shard that owns each sign: the high word of hash * shards."""
    hashes = _mix(signs.view(np.uint64) ^ np.uint64(0xD1B54A32D192ED03))
    low = (hashes & np.uint64(0xFFFFFFFF)) * np.uint64(shards)
    high = (hashes >> np.uint64(32)) * np.uint64(shards)
    return (high + (low >> np.uint64(32))) >> np.uint64(32)


class TableModel:
    """What a table does, on a fixed set of signs.

    Methods take and give indices of `signs`, which may repeat.

    Args:
      signs: int64 `[size]`, all signs that a program uses.
      initial: float32 `[size, DIM]`, the weights with which rows begin.
      seed: int, that of the table.
      shards: int, the number of its shards.
      policy: its admission.
      unknown: string, as of the table.
      last_seen: bool, whether its rows hold when they were seen last.
      statistics: int, how many of "show" and "click" its rows hold.
    """

    def __init__(
        self,
        signs,
        initial,
        seed,
        shards,
        policy,
        unknown,
        last_seen,
        statistics,
    ):
        self.signs = signs
        self._initial = initial
        self._seed = seed
        self.has_last_seen, self.statistics = last_seen, statistics
        size = len(signs)
        self.present = np.zeros(size, bool)
        self._fields = {
            "weights": np.zeros([size, DIM], np.float32),
            "momentum": np.zeros([size, DIM], np.float32),
            "last_seen": np.zeros([size, 1], np.int32),
            "show": np.zeros([size, 1], np.float32),
            "click": np.zeros([size, 1], np.float32),
        }
        self._ties = _mix(signs.view(np.uint64) ^ np.uint64(0x2545F4914F6CDD1D))
        with np.errstate(over="ignore"):
            self._hash = _mix(
                signs.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            )
        self._counts = np.zeros(size, np.int64)
        self._periods = np.zeros(size, np.int64)  # of the last count
        self.policy = self._period = None
        self.become(shards, policy, unknown)

    def become(self, shards, policy, unknown):
        """The rows are loaded into a new table."""
        self._load_counters(policy)
        self._shards = _shard(self.signs, shards)
        self._num_shards, self.policy, self.unknown = shards, policy, unknown
        self._last_push = 0
        self.admitted = self.evicted = self.forgotten = 0

    def _load_counters(self, policy):
        count = admission.Count
        if not (isinstance(self.policy, count) and isinstance(policy, count)):
            self._forget_all()
        elif policy.forget not in (None, self.policy.forget):
            self._forget_all()  # Their periods are others.
        else:
            # Those that would have been admitted are at their next push.
            self._counts = np.minimum(self._counts, policy.n - 1)
            if policy.forget is None:
                self._periods[:] = self._period = 0

    def _forget_all(self):
        self._counts[:] = 0
        self._period = 0

    def fields(self):
        """The fields of the rows that are there."""
        names = ["weights", "momentum"] + ["last_seen"] * self.has_last_seen
        names += ["show", "click"][: self.statistics]
        return {name: self._fields[name][self.present] for name in names}

    def waiting(self):
        """The number of signs that have a counter."""
        return np.count_nonzero(self._counts)

    def _insert(self, at):
        at = at[~self.present[at]]
        self.present[at] = True
        self._counts[at] = 0
        self._fields["weights"][at] = self._initial[at]
        self._fields["momentum"][at] = 0
        self._fields["last_seen"][at] = _NEVER
        self._fields["show"][at] = 0
        self._fields["click"][at] = 0

    def pull(self, at, training):
        """The weights that are read."""
        if training and self.policy is None:
            self._insert(at)
        unknown = self._initial if self.unknown == "initial" else 0.0
        present = self.present[:, np.newaxis]
        return np.where(present, self._fields["weights"], unknown)[at]

    def push(self, at, gradients, step, statistics=None):
        """Returns the number of updates.

        `gradients` and `statistics` must be such that their sums do not depend
        on the order.
        """
        self._last_push = step
        if statistics is None:
            statistics = np.tile(np.float32([1, 0]), [len(at), 1])
        at, inverse = np.unique(at, return_inverse=True)
        gradient = np.zeros([len(at), DIM], np.float32)
        np.add.at(gradient, inverse, gradients)
        counted = np.zeros([len(at), 2], np.float32)
        width = statistics.shape[1]
        np.add.at(counted[:, :width], inverse, statistics)
        admitted = self._admit(at, counted[:, 0], step)
        self.admitted += np.count_nonzero(~self.present[at] & admitted)
        at, gradient, counted = (v[admitted] for v in (at, gradient, counted))
        self._insert(at)
        fields = self._fields
        momentum = MOMENTUM * fields["momentum"][at] - RATE * gradient
        fields["momentum"][at] = momentum
        fields["weights"][at] += momentum
        fields["last_seen"][at] = np.maximum(fields["last_seen"][at], step)
        fields["show"][at] += counted[:, :1]
        fields["click"][at] += counted[:, 1:]
        return len(at)

    def _admit(self, at, shows, step):
        """Which of the signs, each of which is there once, are updated."""
        occurrences = (shows.astype(np.float64) + 0.5).astype(np.int64)
        if self.policy is None:
            return np.ones(len(at), bool)
        if isinstance(self.policy, admission.Probability):
            return self.present[at] | self._draws(at, occurrences, step)
        forget = self.policy.forget
        if forget is not None:
            self._period = max(self._period, step // forget)
            old = (self._counts > 0) & (self._period - self._periods > 1)
            self.forgotten += np.count_nonzero(old)
            self._counts[old] = 0
        counts = self._counts[at] + occurrences
        counted = ~self.present[at] & (occurrences > 0)
        reached = counted & (counts >= self.policy.n)
        waiting = counted & ~reached
        self._counts[at[waiting]] = counts[waiting]
        self._periods[at[waiting]] = self._period
        return self.present[at] | reached

    def _draws(self, at, occurrences, step):
        key = np.uint64([self._seed ^ 0x5851F42D4C957F2D])
        with np.errstate(over="ignore"):
            key = _mix(_mix(key) + np.uint64(step))
        uniform = (_mix(key ^ self._hash[at]) >> np.uint64(11)) * 2.0**-53
        none, factor = np.ones(len(at)), 1 - self.policy.p
        left = occurrences.copy()
        while left.any():
            none[left % 2 == 1] *= factor
            left, factor = left // 2, factor * factor
        once = uniform < self.policy.p
        return np.where(occurrences == 1, once, uniform < 1 - none)

    def erase(self, at):
        """Returns the number of rows."""
        at = np.unique(at)
        erased = np.count_nonzero(self.present[at])
        self.present[at] = False
        self._counts[at] = 0
        return erased

    def clear(self):
        """Returns the number of rows."""
        erased = np.count_nonzero(self.present)
        self.present[:] = False
        self._forget_all()
        return erased

    def import_rows(self, at, weights):
        """Sets the weights of signs, each of which is there once."""
        self._insert(at)
        self._fields["weights"][at] = weights

    def decay(self, factor):
        """Returns the number of rows."""
        for name in ("show", "click"):
            self._fields[name] *= np.float32(factor)
        return np.count_nonzero(self.present)

    def unseen(self, steps, now):
        """The arguments of these are those of the policies."""
        return self._evict(self._old(steps, now))

    def capacity(self, rows, by, now):
        self._age(now)
        evicted = np.zeros(len(self.signs), bool)
        for shard in range(self._num_shards):
            [there] = np.nonzero(self.present & (self._shards == shard))
            keys = self._fields[by][there, 0]
            there = there[np.lexsort([self._ties[there], keys])]
            part = rows // self._num_shards + (shard < rows % self._num_shards)
            evicted[there[: max(0, len(there) - part)]] = True
        return self._evict(evicted)

    def score(self, threshold, show_weight, click_weight, unseen, require, now):
        show, click = (
            self._fields[name][:, 0].astype(np.float64)
            for name in ("show", "click")
        )
        low = show_weight * show + click_weight * click < threshold
        old = self._old(unseen, now)
        if unseen is None:
            return self._evict(low)
        return self._evict(old & low if require == "all" else old | low)

    def _old(self, steps, now):
        self._age(now)
        if steps is None:
            return np.zeros(len(self.signs), bool)
        return now - self._fields["last_seen"][:, 0] >= steps

    def _age(self, now):
        """Rows of unknown age begin to age."""
        seen, latest = self._fields["last_seen"], max(now, self._last_push)
        seen[(seen < 0) | (seen > latest)] = latest

    def _evict(self, those):
        """Returns how many rows were examined and evicted."""
        examined = np.count_nonzero(self.present)
        evicted = np.count_nonzero(self.present & those)
        self.present &= ~those
        self.evicted += evicted
        return examined, evicted
