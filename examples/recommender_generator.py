# SPDX-License-Identifier: Apache-2.0
"""Made-up ratings of items by users, with known best predictions.

Users and items have latent factors that their attributes tell something of:
those of an item follow its genres, those of a user age, gender and occupation.
A user picks one item after the other: popular ones, ones to its taste, and ones
like the last ones it picked. It clicks on an item the more, the more items of
the same main genre are in its history, and rates it by its taste. All of this
is drawn from probabilities, and nothing predicts better than these.
"""

import dataclasses

import numpy as np

GENRES = 12
OCCUPATIONS = 10
FACTORS = 3
DAY = 24 * 60 * 60
# Midnight of 2024-01-01, UTC.
START = 1704067200
# How many of the last items decide what is picked next.
RECENT = 3


@dataclasses.dataclass
class Teacher:
    """What the users do; ids count from 1, and are 0 where there is none.

    Attributes:
      user_factors: float `[users + 1, FACTORS]`.
      item_factors: float `[items + 1, FACTORS]`; zeros for item 0.
      popularity: float `[items + 1]`.
      genre: int `[items + 1]`, the main genre of each item; 0 for item 0.
      release: int64 `[items + 1]`: since when there is each item, in seconds.
      user_effects, item_effects: dicts of `[users + 1]` and `[items + 1]`, by
        "click" and "rating".
    """

    user_factors: np.ndarray
    item_factors: np.ndarray
    popularity: np.ndarray
    genre: np.ndarray
    release: np.ndarray
    user_effects: dict[str, np.ndarray]
    item_effects: dict[str, np.ndarray]

    def choice(self, users, recent, timestamps):
        """Logits of what is picked next, `[n, items]`: of items 1, 2, ...

        Args:
          users: ids, `[n]`.
          recent: the last `RECENT` items before, `[n, RECENT]`.
          timestamps: in seconds, `[n]`; items that come later have -inf.
        """
        counts = np.maximum((recent > 0).sum(1, keepdims=True), 1)
        counts = counts.astype(np.float32)
        mood = self.item_factors[recent].sum(1) / counts
        wanted = 1.5 * self.user_factors[users] + 2.0 * mood
        logits = wanted @ self.item_factors[1:].T + self.popularity[1:]
        later = self.release[1:] > timestamps[:, np.newaxis]
        return np.where(later, np.float32(-np.inf), logits)

    def click(self, users, items, history):
        """Probabilities of clicks, `[n]`.

        Args:
          users: ids, `[n]`.
          items: ids, `[n]`.
          history: ids of earlier items, `[n, length]`; 0 is padding.
        """
        taste = np.sum(self.user_factors[users] * self.item_factors[items], 1)
        genres = self.genre[history]
        same = np.sum(genres == self.genre[items][:, np.newaxis], axis=1)
        logits = self.user_effects["click"][users]
        logits = logits + self.item_effects["click"][items] + 0.25 * taste
        return _sigmoid(logits + 2.0 * np.log1p(same) - 2.5)

    def rating(self, users, items):
        """Probabilities of the ratings 1 to 5, `[n, 5]`."""
        taste = np.sum(self.user_factors[users] * self.item_factors[items], 1)
        score = 3.5 + 0.2 * taste + self.user_effects["rating"][users]
        score = score + self.item_effects["rating"][items]
        # The score, with logistic noise, is rounded to a rating.
        bounds = np.arange(1.5, 5.0)
        above = _sigmoid((score[:, np.newaxis] - bounds) / 0.4)
        return -np.diff(above, prepend=1.0, append=0.0)


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def make_users(random, count):
    """Returns (attributes of the users 1, 2, ..., factors of 0, 1, 2, ...)."""
    age = random.integers(15, 65, count)
    gender = random.integers(0, 2, count)
    occupation = random.integers(0, OCCUPATIONS, count)
    by_age = random.normal(size=(6, FACTORS))
    by_gender = random.normal(size=(2, FACTORS))
    by_occupation = random.normal(size=(OCCUPATIONS, FACTORS))
    factors = 0.4 * (
        by_age[age // 10 - 1]
        + by_gender[gender]
        + by_occupation[occupation]
        + random.normal(scale=0.4, size=(count, FACTORS))
    )
    users = {
        "user": np.arange(1, count + 1),
        "age": age,
        "gender": np.array([b"F", b"M"])[gender],
        "occupation": np.array([b"job%d" % i for i in range(OCCUPATIONS)])[
            occupation
        ],
        "zip": np.array(
            [b"%05d" % i for i in random.integers(0, 10**5, count)]
        ),
    }
    return users, _with_none(factors)


def make_items(random, count):
    """Returns (attributes of the items 1, 2, ..., factors of 0, 1, 2, ...)."""
    names = np.array([b""] + [b"genre%d" % i for i in range(GENRES)])
    # Up to three genres, the first ones of an order that is its own.
    genres = 1 + np.argsort(random.random((count, GENRES)), axis=1)[:, :3]
    genres[np.arange(3) > random.integers(0, 3, count)[:, np.newaxis]] = 0
    by_genre = np.concatenate(
        [np.zeros((1, FACTORS)), random.normal(size=(GENRES, FACTORS))]
    )
    sizes = np.sqrt((genres > 0).sum(1, keepdims=True))
    factors = by_genre[genres].sum(1) / sizes
    factors = 0.7 * factors + 0.3 * random.normal(size=(count, FACTORS))
    items = {"item": np.arange(1, count + 1), "genres": names[genres]}
    return items, _with_none(factors)


def _with_none(rows):
    return np.concatenate([np.zeros_like(rows[:1]), rows])


def make_teacher(random, user_factors, item_factors, genres, days, new_items):
    """Draws what attributes tell nothing of.

    Args:
      random: `np.random.Generator`.
      user_factors: float `[users + 1, FACTORS]`.
      item_factors: float `[items + 1, FACTORS]`.
      genres: string `[items, n]`, of the items 1, 2, ..., the main ones first.
      days: int.
      new_items: the share of the items that appear in the course of the days.

    Returns:
      Teacher.
    """
    users, items = len(user_factors), len(item_factors)
    release = np.where(
        random.random(items) < new_items, random.random(items) * days * DAY, 0
    )
    return Teacher(
        user_factors.astype(np.float32),
        item_factors.astype(np.float32),
        random.normal(0.0, 0.7, items).astype(np.float32),
        np.append(0, 1 + np.unique(genres[:, 0], return_inverse=True)[1]),
        START + release.astype(np.int64),
        {
            "click": random.normal(0.0, 0.3, users),
            "rating": random.normal(0.0, 0.3, users),
        },
        {
            "click": random.normal(0.0, 0.5, items),
            "rating": random.normal(0.0, 0.4, items),
        },
    )


def pick_items(random, teacher, count, days):
    """Lets the users pick items, each at most once.

    Args:
      random: `np.random.Generator`.
      teacher: Teacher.
      count: about how many items are picked by all users.
      days: int, in how many days.

    Returns:
      Dict of int64 arrays `user`, `item` and `timestamp`, in the order of time.
    """
    users, items = len(teacher.user_factors) - 1, len(teacher.popularity) - 1
    # Some are more active than others; nobody picks more than half of all.
    activity = random.gamma(4.0, size=users)
    sizes = random.poisson(count * activity / activity.sum())
    sizes = np.clip(sizes, 2, items // 2)
    times = START + random.integers(0, days * DAY, (users, sizes.max()))
    times[np.arange(sizes.max()) >= sizes[:, np.newaxis]] = START + days * DAY
    times = np.sort(times, axis=1)
    picked = np.zeros((users, RECENT + sizes.max()), np.int64)
    # A few users at a time, whose logits fit into the processor's caches.
    for first in range(0, users, 64):
        block = np.arange(first, min(first + 64, users))
        unseen = np.zeros((len(block), items), np.float32)
        for turn in range(sizes[block].max()):
            rows = np.flatnonzero(sizes[block] > turn)
            active = block[rows]
            logits = unseen[rows] + teacher.choice(
                active + 1,
                picked[active, turn : turn + RECENT],
                times[active, turn],
            )
            # Draws from the softmax of the logits.
            waits = random.standard_exponential(logits.shape, np.float32)
            logits -= np.log(waits + np.float32(1e-30))
            chosen = np.argmax(logits, axis=1)
            unseen[rows, chosen] = -np.inf
            picked[active, RECENT + turn] = 1 + chosen
    user, turn = np.nonzero(picked[:, RECENT:])
    timestamp = times[user, turn]
    order = np.argsort(timestamp, kind="stable")
    return {
        "user": 1 + user[order],
        "item": picked[user, RECENT + turn][order],
        "timestamp": timestamp[order],
    }
