# SPDX-License-Identifier: Apache-2.0
"""Ratings of items by users: the data of the examples of recommenders.

They are made up, with known best predictions, or read from a folder that has
the layout of MovieLens-100K (https://grouplens.org/datasets/movielens/100k):

    parser = argparse.ArgumentParser()
    recommender_data.add_arguments(parser)
    data = recommender_data.load(parser.parse_args())
    names = ["user", "item"]
    model = build_model(data.inputs(names))
    model.fit(data.dataset(data.train, 1024, names, "click", shuffle_seed=1))

An example is an event: a user rates an item. Its features are

    user, item    int64 [], ids from 1
    genres        string [n], of the item, padded with "" at the end
    genre         string [], the first one of them
    age           int64 [], of the user, in years
    gender, occupation, zip    string [], of the user
    history       int64 [HISTORY], the last items that the user rated before,
                  the oldest first, padded with 0 at the end
    history_genre    string [HISTORY], the `genre` of each of them, padded
                  with "" at the end
    timestamp     int64 [], in seconds since 1970

and its labels, float32 [],

    rating        1 to 5
    click         0 or 1: drawn for itself, by the history; in MovieLens,
                  whether the rating is at least 4
    like          0 or 1: whether the rating is 5
"""

import dataclasses
import pathlib

import numpy as np
import recommender_generator
import tensorflow as tf

import tf_ext

HISTORY = 20
DAY = recommender_generator.DAY
LABELS = ("rating", "click", "like")
# Without a split by files: the last part of all events.
TEST_FRACTION = 0.1

GENRES = (
    "unknown Action Adventure Animation Children's Comedy Crime Documentary "
    "Drama Fantasy Film-Noir Horror Musical Mystery Romance Sci-Fi Thriller "
    "War Western"
).split()

_EVENTS = tf_ext.data.Schema(
    [
        tf_ext.data.Field(name, "int64")
        for name in ("user", "item", "rating", "timestamp")
    ]
)


@dataclasses.dataclass
class Ratings:
    """Events to train on and to test with; each is a dict of arrays.

    Attributes:
      train, test: dicts of features and labels, `[events, ...]`, each in the
        order of time. The test's events come after those of training, but in
        MovieLens's splits by files. Histories are of `train` alone there.
      users, items: dicts of the features of each user and each item, in the
        order of ids; in MovieLens, also the `title` of an item.
      teacher: `recommender_generator.Teacher`; None for MovieLens.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    users: dict[str, np.ndarray]
    items: dict[str, np.ndarray]
    teacher: recommender_generator.Teacher | None = None

    def inputs(self, names):
        """The inputs of a model: a dict of `tf.keras.Input` by feature."""
        return {
            name: tf.keras.Input(
                self.train[name].shape[1:],
                dtype="string"
                if self.train[name].dtype.kind == "S"
                else self.train[name].dtype.name,
                name=name,
            )
            for name in names
        }

    def dataset(self, events, batch_size, names, label, shuffle_seed=None):
        """A `tf.data.Dataset` of (features, labels) in batches.

        Args:
          events: `train`, `test` or another such dict.
          batch_size: int.
          names: list of the features' names, as for `inputs`.
          label: one of `LABELS`, or a list of some for a dict of labels.
          shuffle_seed: int; None for the order of `events`.
        """
        features = {name: tf.constant(events[name]) for name in names}
        labels = tf.nest.map_structure(
            lambda name: tf.constant(events[name]),
            label if isinstance(label, str) else {name: name for name in label},
        )
        count = len(events["user"])
        places = tf.data.Dataset.range(count)
        if shuffle_seed is not None:
            places = places.shuffle(count, seed=shuffle_seed)
        return (
            places.batch(batch_size)
            .map(
                lambda places: tf.nest.map_structure(
                    lambda values: tf.gather(values, places), (features, labels)
                ),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
            .prefetch(tf.data.AUTOTUNE)
        )

    def best(self, label, events):
        """The best predictions possible of a label, float64 `[events]`.

        They are the expected ratings, or the probabilities that `click` or
        `like` is 1. None if nobody knows, as for MovieLens.
        """
        if self.teacher is None:
            return None
        users, items = events["user"], events["item"]
        if label == "click":
            return self.teacher.click(users, items, events["history"])
        ratings = self.teacher.rating(users, items)
        return ratings[:, 4] if label == "like" else ratings @ np.arange(1, 6)

    def best_scores(self, events):
        """The best scores to rank all items by, `[events, items]`, or None.

        They are logits of what each event's user picks, in the order of
        `items`: compute them for some thousands of events at a time.
        """
        if self.teacher is None:
            return None
        length = (events["history"] > 0).sum(1, keepdims=True)
        last = length - np.arange(recommender_generator.RECENT, 0, -1)
        recent = np.take_along_axis(events["history"], np.maximum(last, 0), 1)
        return self.teacher.choice(
            events["user"], np.where(last < 0, 0, recent), events["timestamp"]
        )

    def without_seen(self, scores, users):
        """`scores` with -inf for what a user rated in training.

        Args:
          scores: floats `[n, items]`, in the order of `items`.
          users: ids, `[n]`.
        """
        places = np.searchsorted(self.users["user"], self.train["user"])
        items = np.searchsorted(self.items["item"], self.train["item"])
        seen = np.zeros((len(self.users["user"]), scores.shape[1]), bool)
        seen[places, items] = True
        rows = seen[np.searchsorted(self.users["user"], users)]
        return np.where(rows, -np.inf, scores)


def rmse(labels, predictions):
    """The root of the mean squared error."""
    errors = np.asarray(labels, np.float64) - np.asarray(predictions)
    return float(np.sqrt(np.mean(errors**2)))


def auc(labels, scores):
    """The area under the ROC curve, exactly: as if all were of one user."""
    return tf_ext.metrics.gauc(np.zeros(len(labels), int), labels, scores).value


def histories(events, source):
    """What each event's user rated before, in the events of `source`.

    Events of the same second are not before each other, as nobody knows their
    order: MovieLens's users rated many items within seconds.

    Args:
      events: dict of arrays `user`, `item` and `timestamp`.
      source: as `events`.

    Returns:
      int64 `[events, HISTORY]`, the oldest first, padded with 0 at the end.
    """
    keys = _by_user_and_time(source)
    order = np.argsort(keys, kind="stable")
    keys, items = keys[order], np.append(source["item"][order], 0)
    ends = np.searchsorted(keys, _by_user_and_time(events))
    begins = np.searchsorted(
        keys, _by_user_and_time({**events, "timestamp": events["user"] * 0})
    )
    begins = np.maximum(begins, ends - HISTORY)
    places = begins[:, np.newaxis] + np.arange(HISTORY)
    return np.where(
        places < ends[:, np.newaxis], items[np.minimum(places, len(keys))], 0
    )


def _by_user_and_time(events):
    """A number that rises with users, and with the time within a user."""
    return (events["user"].astype(np.int64) << 34) + events["timestamp"]


def _join(events, users, items):
    """Adds the features of each event's user, item and history."""
    user_places = np.searchsorted(users["user"], events["user"])
    item_places = np.searchsorted(items["item"], events["item"])
    history_places = np.searchsorted(items["item"], events["history"])
    genre = items["genres"][:, 0]
    return {
        **{name: values[user_places] for name, values in users.items()},
        "genres": items["genres"][item_places],
        "genre": genre[item_places],
        "history_genre": np.where(
            events["history"] > 0, genre[history_places], b""
        ),
        **events,
    }


def _part(events, chosen):
    return {name: values[chosen] for name, values in events.items()}


def generate(
    events=240_000,
    users=800,
    items=800,
    days=30,
    test_days=None,
    new_items=0.0,
    seed=1,
):
    """Makes up ratings.

    Args:
      events: int, about how many there are, with those of the test.
      users: int, how many there are.
      items: int, how many there are.
      days: int, over which the events are spread.
      test_days: int, the last days, whose events are the test's; None for the
        last tenth of the days.
      new_items: float, the share of the items that appear in the course of the
        days; the others are there from the beginning.
      seed: int; the same numbers give the same data.

    Returns:
      Ratings.
    """
    random = np.random.default_rng(seed)
    user_features, user_factors = recommender_generator.make_users(
        random, users
    )
    item_features, item_factors = recommender_generator.make_items(
        random, items
    )
    teacher = recommender_generator.make_teacher(
        random,
        user_factors,
        item_factors,
        item_features["genres"],
        days,
        new_items,
    )
    picked = recommender_generator.pick_items(random, teacher, events, days)
    picked["history"] = histories(picked, picked)
    chances = teacher.rating(picked["user"], picked["item"])
    draws = random.random((len(chances), 1))
    rating = 1 + np.sum(draws > np.cumsum(chances, axis=1)[:, :4], axis=1)
    clicks = teacher.click(picked["user"], picked["item"], picked["history"])
    picked["rating"] = rating.astype(np.float32)
    picked["click"] = (random.random(len(rating)) < clicks).astype(np.float32)
    picked["like"] = (rating == 5).astype(np.float32)
    joined = _join(picked, user_features, item_features)
    if test_days is None:
        test_days = max(1, int(days * TEST_FRACTION))
    last = recommender_generator.START + (days - test_days) * DAY
    is_test = joined["timestamp"] >= last
    return Ratings(
        _part(joined, ~is_test),
        _part(joined, is_test),
        user_features,
        item_features,
        teacher,
    )


def read_movielens(folder, split="ua"):
    """Reads a folder of the layout of MovieLens-100K.

    Args:
      folder: path of the folder of `u.item` and `u.user`.
      split: name of a split by files: `"u1"` is that of `u1.base` and
        `u1.test`; or `"time"`: the first nine tenths of `u.data`, and the rest.

    Returns:
      Ratings.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: what a file says is not as in MovieLens.
      tf.errors.InvalidArgumentError: a line of events is malformed.
    """
    folder = pathlib.Path(folder)
    users = _read_users(folder / "u.user")
    items = _read_items(folder / "u.item")
    if split == "time":
        events = _read_events(folder / "u.data", users, items)
        count = len(events["user"]) - int(len(events["user"]) * TEST_FRACTION)
        events["history"] = histories(events, events)
        places = np.arange(len(events["user"]))
        train, test = (
            _part(events, places < count),
            _part(events, places >= count),
        )
    else:
        train, test = (
            _read_events(folder / f"{split}.{part}", users, items)
            for part in ("base", "test")
        )
        for part in (train, test):
            part["history"] = histories(part, train)
    return Ratings(
        _join(train, users, items), _join(test, users, items), users, items
    )


def _check_file(path):
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}. --data must be a folder that has the "
            "files of MovieLens-100K: u.item, u.user, and the two files of the "
            "split, such as ua.base and ua.test, or u.data with --split=time."
        )


def _lines(path, width):
    """Yields (line number, fields) of a file that describes users or items.

    They are of another format than those that `tf_ext.data.read` reads, and in
    Latin-1.
    """
    _check_file(path)
    for number, line in enumerate(
        path.read_text("latin-1").split("\n"), start=1
    ):
        fields = line.rstrip("\r").split("|")
        if fields == [""]:
            continue
        if len(fields) != width:
            raise ValueError(
                f"{path}, line {number}: a line of MovieLens-100K has {width} "
                "fields, separated by '|', but this one has "
                f"{len(fields)}: {line[:80]!r}."
            )
        yield number, fields


def _integer(path, number, text):
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"{path}, line {number}: {text!r} is not an integer."
        ) from None


def _columns(rows, path):
    """Turns a list of rows into columns, sorted by the first one."""
    if not rows:
        raise ValueError(f"{path} is empty.")
    return list(zip(*sorted(rows), strict=True))


def _read_users(path):
    rows = []
    for number, (user, age, gender, occupation, zip_code) in _lines(path, 5):
        ids = [_integer(path, number, text) for text in (user, age)]
        rows.append((*ids, gender, occupation, zip_code))
    user, age, *texts = _columns(rows, path)
    texts = [np.char.encode(np.array(text), "utf-8") for text in texts]
    names = ("gender", "occupation", "zip")
    return {
        "user": np.array(user),
        "age": np.array(age),
        **dict(zip(names, texts, strict=True)),
    }


def _read_items(path):
    rows = []
    for number, fields in _lines(path, 5 + len(GENRES)):
        flags = fields[5:]
        if not set(flags) <= {"0", "1"}:
            raise ValueError(
                f"{path}, line {number}: the last {len(GENRES)} fields must be "
                f"0 or 1, one for each genre, but are {'|'.join(flags)!r}."
            )
        genres = [
            g for g, flag in zip(GENRES, flags, strict=True) if flag == "1"
        ]
        rows.append((_integer(path, number, fields[0]), fields[1], genres))
    item, title, genres = _columns(rows, path)
    width = max(1, *(len(bag) for bag in genres))
    padded = [bag + [""] * (width - len(bag)) for bag in genres]
    return {
        "item": np.array(item),
        "title": np.char.encode(np.array(title), "utf-8"),
        "genres": np.char.encode(np.array(padded), "utf-8"),
    }


def _read_events(path, users, items):
    _check_file(path)
    parts = [
        *tf_ext.data.read(
            path, _EVENTS, "tsv", batch_size=1 << 16, max_errors=0.0
        ).as_numpy_iterator()
    ]
    if not parts:
        raise ValueError(f"{path} is empty.")
    events = {
        name: np.concatenate([p[name] for p in parts]) for name in parts[0]
    }
    events = _part(events, np.argsort(events["timestamp"], kind="stable"))
    for name, known in (("user", users["user"]), ("item", items["item"])):
        unknown = np.setdiff1d(events[name], known)
        if unknown.size:
            raise ValueError(
                f"{path}: the {name} {unknown[0]} is not in "
                f"{path.with_name('u.' + name)}."
            )
    rating = events["rating"]
    wrong = rating[(rating < 1) | (rating > 5)]
    if wrong.size:
        raise ValueError(
            f"{path}: a rating must be 1 to 5, but one is {wrong[0]}."
        )
    return {
        **events,
        "rating": rating.astype(np.float32),
        "click": (rating >= 4).astype(np.float32),
        "like": (rating == 5).astype(np.float32),
    }


def add_arguments(parser):
    """Adds the arguments that choose the data."""
    parser.add_argument(
        "--data",
        help="folder of MovieLens-100K, or of its layout; default: the data "
        "is made up",
    )
    parser.add_argument(
        "--split",
        default="ua",
        help="which files of --data: u1 for u1.base and u1.test; time to test "
        "on the last tenth of u.data; default: ua",
    )
    parser.add_argument(
        "--events",
        type=int,
        default=240_000,
        help="how many to make up, without --data",
    )
    parser.add_argument("--seed", type=int, default=1)


def load(args, **generated):
    """Returns the Ratings that the arguments of `add_arguments` choose.

    Args:
      args: the program's arguments.
      **generated: more arguments of `generate`.
    """
    if args.data:
        return read_movielens(args.data, args.split)
    return generate(args.events, seed=args.seed, **generated)
