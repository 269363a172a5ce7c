# SPDX-License-Identifier: Apache-2.0
"""A made-up folder of the layout of MovieLens-100K, for tests of examples."""

import numpy as np

GENRES = 19
_TITLES = ("Caf\xe9 Noir", "L'Été", "Plain Film")
_DAY = 24 * 60 * 60


def write_movielens(folder, users=40, items=30, events_of_user=20, seed=1):
    """Writes u.data, u.item, u.user, and the splits ua and u1.

    Users of even numbers like items of even numbers, and the others the others,
    so that there is something to learn. Tests have the last events of each user
    (ua), or any (u1), as those of MovieLens.

    Args:
      folder: `pathlib.Path`; it is created.
      users: int, how many there are.
      items: int, how many there are.
      events_of_user: int, at least 5, and at most half of `items` more.
      seed: int.

    Returns:
      List of (user, item, rating, timestamp), the lines of u.data.
    """
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = ["writer", "student", "none"]
    _write(
        folder / "u.user",
        [
            (u, 10 + u, "MF"[u % 2], jobs[u % 3], f"{u:05d}")
            for u in range(1, users + 1)
        ],
        "|",
    )
    lines = []
    for item in range(1, items + 1):
        flags = [0] * GENRES
        flags[1 + item % 2] = flags[3 + item % 7] = 1
        title = f"{_TITLES[item % 3]} {item} (1995)"
        lines.append((item, title, "01-Jan-1995", "", "http://x", *flags))
    _write(folder / "u.item", lines, "|")
    events = []
    for user in range(1, users + 1):
        picked = 1 + random.permutation(items)[:events_of_user]
        start = 874724710 + int(random.integers(0, 10 * _DAY))
        for place, item in enumerate(picked.tolist()):
            liked = (user + item) % 2 == 0
            rating = int(
                random.integers(3, 6) if liked else random.integers(1, 4)
            )
            # Two at a time, as in MovieLens.
            events.append((user, item, rating, start + place // 2 * _DAY // 4))
    shuffled = [events[i] for i in random.permutation(len(events))]
    _write(folder / "u.data", shuffled, "\t")
    last = {e for u in range(users) for e in _of_user(events, u + 1)[-3:]}
    some = set(shuffled[: len(shuffled) // 5])
    for name, test in (("ua", last), ("u1", some)):
        _write(
            folder / f"{name}.base", [e for e in events if e not in test], "\t"
        )
        _write(folder / f"{name}.test", [e for e in events if e in test], "\t")
    return shuffled


def _of_user(events, user):
    return [event for event in events if event[0] == user]


def _write(path, lines, separator):
    text = "".join(separator.join(map(str, line)) + "\n" for line in lines)
    path.write_text(text, "latin-1")
