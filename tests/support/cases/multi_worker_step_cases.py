# SPDX-License-Identifier: Apache-2.0
"""The results of a training step and of an epoch of synchronous workers."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models import counted_rows
from models.model_building import id_column, number

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute.collectives import collectives_of

DIM = 4


def optimizer(rate=1.0, **kwargs):
    return tf_ext.optimizers.Optimizer(keras.optimizers.SGD(rate), **kwargs)


def sum_table(name="sum", rule=None, **kwargs):
    """A table whose rows become minus the sum of their gradients."""
    rule = rule or tf_ext.optimizers.SparseSGD(1.0)
    return tf_ext.SparseTable(name, DIM, rule, "zeros", **kwargs)


def dot(targets, outputs):
    """A loss whose gradient is the targets."""
    return tf.reduce_sum(targets * outputs, -1)


def dot_model(rule=None, **kwargs):
    """A model that returns embeddings of `user` and, as a mean, `items`."""
    columns = [id_column("user"), id_column("items", "mean")]
    ids = {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((None,), dtype="int64", name="items"),
    }
    layer = tf_ext.layers.EmbeddingFeatures(columns, sum_table(rule=rule))
    model = tf_ext.Model(ids, layer(ids))
    model.compile(optimizer(**kwargs), dot)
    return model


def dot_batch(samples=128, ids=40, seed=0):
    """Features and targets of `dot_model`; the ids of samples repeat."""
    rng = np.random.default_rng(seed)
    features = {
        "user": rng.integers(0, ids, samples),
        "items": rng.integers(ids // 2, 2 * ids, (samples, 3)),
    }
    return features, rng.normal(size=(samples, 2 * DIM)).astype(np.float32)


def fit_shares(worker, model, function, steps, epochs=1):
    """Trains on the dataset that a function makes for each worker.

    Args:
      worker: Worker.
      model: compiled model.
      function: from `tf.distribute.InputContext` to a tf.data.Dataset.
      steps: int, the batches of the longest share, which tf_keras asks for.
      epochs: int.

    Returns:
      List of the epochs' losses.
    """
    if IS_KERAS_3:
        return model.fit(function, epochs=epochs, verbose=0).history["loss"]
    losses = []
    for _ in range(epochs):
        data = worker.strategy.distribute_datasets_from_function(
            lambda context: tf_ext.data.variable_batch_size(function(context))
        )
        history = model.fit(data, steps_per_epoch=steps, verbose=0).history
        losses += history["loss"]
    return losses


# One batch.


def _push(worker, sizes):
    """Rows that one batch is pushed to; workers have `sizes` of its samples."""
    with worker.strategy.scope():
        model = dot_model()
    ends = np.cumsum([0, *sizes])

    def function(context):
        first, last = ends[context.input_pipeline_id :][:2]
        part = tf.nest.map_structure(lambda v: v[first:last], dot_batch())
        return tf.data.Dataset.from_tensors(part)

    loss = fit_shares(worker, model, function, steps=1)
    return {**export(model.tables[0]), "loss": loss}


def even_shares(worker):
    return _push(worker, [64, 64])


def uneven_shares(worker):
    return _push(worker, [100, 28])


def one_empty_share(worker):
    return _push(worker, [0, 128])


# One epoch. Lazy Adam counts the updates of each row: where each sample has an
# id of its own, that is how often it was trained.


def counting_model(rule=None):
    """A model whose loss is the mean of the targets; its gradients are 1."""
    ids = {"user": keras.Input((), dtype="int64", name="user")}
    layer = tf_ext.layers.EmbeddingFeatures(
        [id_column("user")],
        sum_table(rule=rule or tf_ext.optimizers.SparseAdam()),
    )
    model = tf_ext.Model(ids, layer(ids))
    model.compile(
        optimizer(),
        lambda y, p: tf.reduce_mean(y + p - tf.stop_gradient(p), -1),
    )
    return model


def numbered(ids):
    """A dataset of samples whose targets are their ids."""
    ids = np.asarray(ids, np.int64)
    return tf.data.Dataset.from_tensor_slices(
        ({"user": ids}, ids[:, np.newaxis].astype(np.float32))
    )


def counted(worker, fit):
    """How often `fit(model)` trained each sample, and in how many steps."""
    with worker.strategy.scope():
        model = counting_model()
    loss = fit(model)
    steps = export(model.tables[0])["step"]
    return {
        "counts": {sign: int(count[0]) for sign, count in steps.items()},
        "steps": int(number(model.optimizer.iterations)),
        "loss": loss,
    }


def _thirds(context):
    """One worker has a third of the samples 0 to 299."""
    return range(100) if context.input_pipeline_id == 0 else range(100, 300)


def epochs_of_thirds(worker):
    return counted(
        worker,
        lambda model: fit_shares(
            worker,
            model,
            lambda context: numbered(_thirds(context)).batch(16),
            steps=13,
            epochs=2,
        ),
    )


def epoch_of_thirds_in_static_batches(worker):
    # Of 100 and 200 samples 4 and 8 are dropped.
    return counted(
        worker,
        lambda model: fit_shares(
            worker,
            model,
            lambda context: numbered(_thirds(context)).batch(
                16, drop_remainder=True
            ),
            steps=12,
        ),
    )


def epoch_of_one_without_data(worker):
    return counted(
        worker,
        lambda model: fit_shares(
            worker,
            model,
            lambda context: numbered(
                range(300) if context.input_pipeline_id else []
            ).batch(16),
            steps=19,
        ),
    )


def _files(batch_size, drop_remainder=False):
    """Samples 0 to 299 in files of 100, 200 and none, shared by file."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tf_ext_files_"))
    for index, ids in enumerate([range(100), range(100, 300), []]):
        text = "".join(f"{number}\n" for number in ids)
        (folder / f"{index}.txt").write_text(text)

    def parse(line):
        number = tf.strings.to_number(line, tf.int64)
        return {"user": number}, tf.cast(number, tf.float32)[tf.newaxis]

    paths = sorted(map(str, folder.iterdir()))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.FILE
    )
    return (
        tf.data.Dataset.from_tensor_slices(paths)
        .flat_map(tf.data.TextLineDataset)
        .map(parse)
        .batch(batch_size, drop_remainder=drop_remainder)
        .with_options(options)
    )


def epoch_by_file(worker):
    return counted(
        worker,
        lambda model: model.fit(_files(32), verbose=0).history["loss"],
    )


def epoch_by_file_in_static_batches(worker):
    # Each file's samples are whole batches.
    return counted(
        worker,
        lambda model: model.fit(
            _files(20, drop_remainder=True), verbose=0
        ).history["loss"],
    )


def custom_loop(worker):
    """Rows are minus the number of times that their samples were trained."""
    strategy = worker.strategy
    with strategy.scope():
        model = counting_model(tf_ext.optimizers.SparseSGD(1.0))
    variables = model.trainable_variables

    @tf.function(autograph=False)
    def train(batch):
        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(batch[0], training=True))
            apply(model.optimizer, tape.gradient(loss, variables), variables)

        strategy.run(step, args=(batch,))

    dataset = tf_ext.data.variable_batch_size(_files(20, drop_remainder=True))
    steps = 0
    for batch in strategy.experimental_distribute_dataset(dataset):
        train(batch)
        steps += 1
    return {"steps": steps, **export(model.tables[0])}


def apply(its_optimizer, grads, variables):
    """Applies gradients, in both Keras versions."""
    if IS_KERAS_3:
        its_optimizer.apply(grads, variables)
    else:
        its_optimizer.apply_gradients(zip(grads, variables))


# Models in which a gradient does not come from one pull alone.


class Entangled(tf_ext.Model):
    """Layers that share a table, a layer called twice, and idle tables.

    Args:
      cvm: bool, whether some of them also read statistics.
    """

    def __init__(self, cvm=False):
        super().__init__()
        rule = tf_ext.optimizers.SparseAdagrad(
            0.1, initial_accumulator_value=1e-6
        )
        make = tf_ext.layers.EmbeddingFeatures
        counting = {"statistics": ["show", "click"]} if cvm else {}
        shared = sum_table("shared", rule, **counting)
        frozen = sum_table("frozen", rule)
        frozen.trainable = False
        user, items = [id_column("user")], [id_column("items", "mean")]
        self.user = make(user, shared)
        self.items = make(items, shared, cvm=cvm)
        self.passive = make(items, shared, trainable=False, cvm=cvm)
        self.unreached = make(user, sum_table("unreached", rule))
        self.frozen = make(user, frozen)
        self.top = keras.layers.Dense(
            DIM,
            kernel_initializer=keras.initializers.RandomUniform(-1, 1, seed=1),
        )

    def call(self, inputs, training=None):
        self.unreached(inputs, training=training)
        again = {"user": inputs["items"][:, 0]}
        return self.top(
            tf.concat(
                [
                    self.user(inputs, training=training),
                    self.items(inputs, training=training),
                    self.passive(inputs, training=training),
                    self.user(again, training=training),
                    self.frozen(inputs, training=training),
                ],
                1,
            )
        )


def _entangled(worker, nested, cvm=False):
    strategy = worker.strategy
    features, targets = dot_batch()
    batch = worker.part((features, targets[:, :DIM]))
    batch = tf.nest.map_structure(tf.constant, batch)
    with strategy.scope():
        model = Entangled(cvm)
        model(batch[0])
        # Logarithms of counts are larger than embeddings.
        its_optimizer = optimizer(0.01 if cvm else 0.1)
        model.compile(its_optimizer, "mse")

    def gradients(features, targets):
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = tf.reduce_sum((outputs - targets) ** 2) / 128.0
        return tape.gradient(loss, model.trainable_variables)

    compute = tf.function(gradients, autograph=False) if nested else gradients

    @tf.function(autograph=False)
    def train(features, targets):
        def step(features, targets):
            grads = compute(features, targets)
            apply(its_optimizer, grads, model.trainable_variables)

        strategy.run(step, args=(features, targets))

    for _ in range(5):
        train(*batch)
    return {
        "variables": [np.asarray(w) for w in model.get_weights()],
        "tables": {table.name: export(table) for table in model.tables},
    }


def entangled(worker):
    return _entangled(worker, nested=False)


def entangled_in_a_nested_function(worker):
    return _entangled(worker, nested=True)


def entangled_with_statistics(worker):
    return _entangled(worker, nested=False, cvm=True)


# Statistics of signs.

# The samples of each worker in each step.
STATISTICS_SIZES = [(40, 3), (0, 7), (5, 1)]


def statistics_batches(rank):
    """A worker's batches of `statistics`."""
    rng = np.random.default_rng(100 + rank)
    return [counted_rows.batch(rng, sizes[rank]) for sizes in STATISTICS_SIZES]


def _statistics(worker, nested, scaled):
    """Rows that count; in the second step, one worker's loss is not finite."""
    with worker.strategy.scope():
        table = counted_rows.table()
        model = counted_rows.Model(table)
        dense = keras.optimizers.SGD(0.1, global_clipnorm=1e-3)
        its_optimizer = (
            counted_rows.scaled(dense)
            if scaled
            else tf_ext.optimizers.Optimizer(dense, on_nonfinite="skip")
        )

        def gradients(features, factor):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(features, training=True)) * factor
            variables = model.trainable_variables
            if not scaled:
                return tape.gradient(loss, variables)
            return counted_rows.scaled_gradients(
                tape, its_optimizer, loss, variables
            )

        compute = tf.function(gradients) if nested else gradients

        @tf.function(
            autograph=False,
            input_signature=[counted_rows.SPEC, tf.TensorSpec([])],
        )
        def train(features, factor):
            def step(features, factor):
                apply(
                    its_optimizer,
                    compute(features, factor),
                    model.trainable_variables,
                )

            worker.strategy.run(step, args=(features, factor))

        for index, features in enumerate(statistics_batches(worker.rank)):
            bad = index == 1 and worker.rank == 1
            train(features, tf.constant(np.nan if bad else 1.0))
    return counted_rows.rows(table)


def statistics_in_a_nested_function(worker):
    return _statistics(worker, nested=True, scaled=False)


def statistics_with_scaled_loss(worker):
    return _statistics(worker, nested=False, scaled=True)


STATISTICS = [
    "statistics_in_a_nested_function",
    "statistics_with_scaled_loss",
]
PUSHES = ["even_shares", "uneven_shares", "one_empty_share"]
ENTANGLED = [
    "entangled",
    "entangled_in_a_nested_function",
    "entangled_with_statistics",
]


def summands(rank):
    """What a worker adds: of several types, few bytes and many."""
    rng = np.random.default_rng(rank)
    return [
        rng.normal(size=[3, 5]).astype(np.float32),
        rng.normal(size=[700, 900]).astype(np.float64),
        rng.integers(-(2**62), 2**62, 7),
        np.float32(rank + 0.1),
        rng.normal(size=[2]),
        rng.integers(-9, 9, 300_000),
        rng.normal(size=[3]).astype(np.float16),
        rng.integers(-(2**30), 2**30, [2, 3], np.int32),
    ]


def sums(worker):
    workers = collectives_of(worker.strategy)
    add = tf.function(workers.sum_and_gather)
    summed, told = add(summands(worker.rank), told_by(worker.rank))
    return [value.numpy() for value in [*summed, told]]


def told_by(rank):
    """What a worker tells the others beside."""
    return np.array([rank, -(2**62) + rank, 2**40])
