# SPDX-License-Identifier: Apache-2.0
"""Trains day by day, as models of advertisements are, in one pass.

Each day, the model is tested on events that it has not seen, then trained on
them; that is the only honest test of a model whose users and items come and go.
Rows count how often their ids are shown and liked. At the end of a day the
counts decay, and rows whose ids are no longer shown are evicted. New ids get a
row when they are shown for the second time.

    python daily.py FOLDER

makes up a month in which one item in ten is new, writes a folder of files for
each day into FOLDER/days, and prints the AUC of each day beside the best one
possible. Recovery points are written into FOLDER/points/DAY. After a kill, at
any time, the same command goes on at the day and step of the newest point, and
ends with the same model. MovieLens-100K, or a folder of its layout, is read
with

    python daily.py FOLDER --data=ml-100k --split=time

What stands for a click is a rating of 5. The last line on standard output is a
JSON object: how many `days`, the means of `auc` and `best_auc` (not of real
data) over the last five of them, the table's `rows`, and how many rows the last
day `evicted`.
"""

import argparse
import datetime
import json
import pathlib

import numpy as np
import recommender_data
from recommender_data import auc
from tensorflow import keras

import tf_ext

FEATURES = ["user", "item", "genre", "age", "gender", "occupation"]
LABEL = "like"
HIDDEN_UNITS = (64, 32)
# Of the counts of rows, by which rows are evicted, at the end of a day.
DECAY = 0.9
# Between recovery points of a day.
POINT_STEPS = 20


def split_days(events):
    """Returns a dict by date: the indices of the events of that day, UTC."""
    days, starts = np.unique(
        events["timestamp"] // recommender_data.DAY, return_index=True
    )
    dates = [
        datetime.date(1970, 1, 1) + datetime.timedelta(int(d)) for d in days
    ]
    parts = np.split(np.arange(len(events["user"])), starts[1:])
    return dict(zip(dates, parts, strict=True))


def write_days(events, places, folder):
    """Writes two files of tab-separated values into a folder for each day.

    Args:
      events: dict of arrays.
      places: dict by date, as of `split_days`.
      folder: `pathlib.Path`.
    """
    columns = [events[name].astype(str) for name in (*FEATURES, LABEL)]
    for day, indices in places.items():
        (folder / str(day)).mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(np.array_split(indices, 2)):
            lines = zip(*(column[part] for column in columns), strict=True)
            text = "".join("\t".join(line) + "\n" for line in lines)
            (folder / str(day) / f"part-{number}.tsv").write_text(text)


def read_day(folder, day, batch_size):
    """A dataset of a day: (features, labels), the same batches each time."""
    field = tf_ext.data.Field
    schema = tf_ext.data.Schema(
        [*map(field, FEATURES), field(LABEL, "float32")], label=LABEL
    )
    files = tf_ext.data.list_files(folder, day, "{day}/part-*.tsv")
    # They were written here: none of their records is malformed.
    dataset = tf_ext.data.read(
        files, schema, "tsv", batch_size=batch_size, max_errors=0
    )
    # The label counts as a click in the statistics of rows.
    return dataset.map(
        lambda values, label: ({**values, "click": label}, label)
    )


def make_model(seed):
    """Returns a compiled model, and its table."""
    table = tf_ext.SparseTable(
        "ids",
        dim=8,
        seed=seed,
        statistics=["show", "click"],
        admission=tf_ext.admission.Count(2),
        eviction=tf_ext.eviction.Score(threshold=1.0),
    )
    columns = [tf_ext.feature_column.category_column(key) for key in FEATURES]
    # Many of these ids are rare.
    tastes = tf_ext.feature_column.crossed_column(["user", "genre"])
    inputs = {
        key: keras.Input((), dtype="string", name=key) for key in FEATURES
    }
    inputs["click"] = keras.Input((), name="click")
    embedded = tf_ext.layers.EmbeddingFeatures(
        [*columns, tastes], table, click="click", cvm=True
    )(inputs)
    crossed = keras.layers.Dense(embedded.shape[-1])(embedded)
    crossed = keras.layers.Multiply()([embedded, crossed])
    hidden = keras.layers.Concatenate()([embedded, crossed])
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.001)),
        loss="binary_crossentropy",
    )
    return model, table


def run_days(folder, places, test, args):
    """Tests on each day, and trains on it; returns what the days said.

    Args:
      folder: `pathlib.Path` of the folder of `days`.
      places: dict by date.
      test: function of (date, predictions) that returns a dict of measures.
      args: the program's arguments.

    Returns:
      List of the measures, in the order of days, with what was evicted last.
    """
    model, table = make_model(args.seed)
    points, tests = folder / "points", folder / "tests"
    tests.mkdir(exist_ok=True)
    days = list(places)
    # After a kill: the last day of which there is a complete point.
    latest = tf_ext.callbacks.latest_point
    begun = [day for day in days if latest(points / str(day))]
    for day in days[days.index(begun[-1]) if begun else 0 :]:
        dataset = read_day(folder / "days", day, args.batch_size)
        file = tests / f"{day}.json"
        if day not in begun:
            measures = test(day, model.predict(dataset, verbose=0)[:, 0])
            # Complete before any point of this day.
            file.write_text(json.dumps(measures))
        point = tf_ext.callbacks.TableSnapshot(
            points / str(day), steps=POINT_STEPS, epoch_end=True, keep=1
        )
        # Goes on from a point of this day, if there is one.
        model.fit(dataset, shuffle=False, verbose=0, callbacks=[point])
        table.decay_statistics(DECAY)
        evicted = table.evict()
        print(
            f"{day}: {len(places[day]):,} events, {file.read_text()}, "
            f"{evicted.evicted} of {evicted.examined} rows evicted",
            flush=True,
        )
    measures = [json.loads((tests / f"{day}.json").read_text()) for day in days]
    return measures, table.stats()["rows"], evicted.evicted


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    recommender_data.add_arguments(parser)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument(
        "--days", type=int, default=30, help="how many to make up"
    )
    # One pass over less does not tell enough about each user.
    parser.set_defaults(events=500_000)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    data = recommender_data.load(args, days=args.days, new_items=0.1)
    events = {k: np.append(data.train[k], data.test[k], 0) for k in data.train}
    order = np.argsort(events["timestamp"], kind="stable")
    events = {name: values[order] for name, values in events.items()}
    places = split_days(events)
    write_days(events, places, args.folder / "days")
    best = data.best(LABEL, events)

    def test(day, predictions):
        labels = events[LABEL][places[day]]
        measures = {"auc": auc(labels, predictions)}
        if best is not None:
            measures["best_auc"] = auc(labels, best[places[day]])
        return measures

    measures, rows, evicted = run_days(args.folder, places, test, args)
    result = {"days": len(places), "rows": rows, "evicted": evicted}
    for name in measures[0]:
        result[name] = float(np.nanmean([m[name] for m in measures[-5:]]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
