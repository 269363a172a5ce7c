# SPDX-License-Identifier: Apache-2.0
"""Training on replicas whose shares of a batch differ in size, or are empty.

What a layer sums over replicas, and what Keras calls a mean, has to be that of
one process with the whole batches. Models are trained by `fit` alone, on
synchronous workers and on the replicas of a MirroredStrategy.
"""

import operator

import numpy as np
import tensorflow as tf
from clusters.case_workers import export, merge_rows
from models.model_building import id_column

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

_BATCH, _EPOCHS = 8, 2
# The last batch is of 1: others have no sample of it. Or it is of 5.
_SAMPLES, _SAMPLES_FOR_ALL = 17, 21
# Samples of each worker in each step of `shares`: of two, then of a third.
_SHARES = [(5, 3, 0), (0, 4, 1), (6, 0, 0), (1, 1, 5)]
_WIDTH = 3


class OverReplicas(keras.layers.Layer):
    """A layer of a user's, which divides by the global batch's mean square."""

    def call(self, inputs):
        ones = tf.ones_like(inputs[:, :1])
        sums = tf.reduce_sum(tf.concat([inputs**2, ones], 1), 0)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        return inputs * tf.math.rsqrt(sums[:-1] / sums[-1] + 0.1)


class AddsLoss(keras.layers.Layer):
    """A layer whose loss is a mean: NaN, of a share without samples."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


def _uniform(seed):
    return keras.initializers.RandomUniform(-1, 1, seed=seed)


def _dense(units, seed, **options):
    return keras.layers.Dense(
        units,
        kernel_initializer=_uniform(seed),
        kernel_regularizer=keras.regularizers.L2(0.01),
        **options,
    )


def _layers(kind):
    """What a kind of model has between its rows and its head."""
    ours, keras_own = tf_ext.layers, keras.layers
    batch_normalization = ours.BatchNormalization(momentum=0.7)
    synchronized = keras_own.BatchNormalization(momentum=0.7, synchronized=True)
    return {
        "dense": [],
        "batch_normalization": [batch_normalization, _dense(4, 5)],
        "keras_batch_normalization": [synchronized, _dense(4, 6)],
        "own_all_reduce": [OverReplicas(), _dense(4, 7)],
        "softmax": [],
        "added_loss": [AddsLoss()],
        "added_loss_before": [AddsLoss(), batch_normalization],
        "added_loss_after": [batch_normalization, AddsLoss()],
        "all": [
            *(batch_normalization, _dense(4, 5), OverReplicas(), _dense(4, 7)),
            *([synchronized] if IS_KERAS_3 else []),
        ],
    }[kind]


class Towers(tf_ext.Model):
    """Rows through layers that sum over replicas, to one or two outputs.

    Args:
      kind: string, a key of `_layers`.
      outputs: type of the outputs: dict, list, or None for a single one.
    """

    def __init__(self, kind, outputs=None):
        super().__init__()
        table = tf_ext.SparseTable(
            "id", 2, tf_ext.optimizers.SparseSGD(0.05), "normal", seed=1
        )
        self.rows = tf_ext.layers.EmbeddingFeatures([id_column("id")], table)
        self.parts = _layers(kind)
        # Which tf_keras's synchronized layer refuses.
        self.has_empty_shares = IS_KERAS_3 or "keras" not in kind
        self.softmax = None
        if kind in ("softmax", "all", "added_loss_after"):
            self.query = _dense(_WIDTH, 8)
            self.softmax = tf_ext.layers.InBatchSoftmax(
                0.5, global_negatives=True
            )
        self.heads = [_dense(1, 3, name="a"), _dense(1, 4, name="b")]
        self.outputs_type = outputs

    def call(self, inputs, training=None):
        rows = self.rows(inputs, training=training)
        hidden = tf.concat([inputs["x"], rows], 1)
        for layer in self.parts:
            if isinstance(layer, keras.layers.BatchNormalization):
                hidden = layer(hidden, training=training)
            else:
                hidden = layer(hidden)
        first, second = (head(hidden) for head in self.heads)
        if self.softmax is not None:
            losses = self.softmax(self.query(hidden), inputs["x"], inputs["id"])
            first += losses[:, tf.newaxis]
        if self.outputs_type is dict:
            return {"a": first, "b": second}
        if self.outputs_type is list:
            return [first, second]
        return first + second


class OwnLoss(Towers):
    """A model whose `compute_loss` adds a mean to Keras's."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + _of_replica(self, tf.reduce_mean(y_pred**2))


def _of_replica(model, mean):
    """A mean over a share as Keras has it, for gradients that are summed."""
    return mean / model.distribute_strategy.num_replicas_in_sync


class OwnStep(Towers):
    """A model whose step computes its gradients itself.

    Args:
      weighted: bool, whether it asks the optimizer to scale the loss.
    """

    def __init__(self, kind, weighted):
        super().__init__(kind)
        self.weighted = weighted

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, sample_weight)
            loss += _of_replica(self, tf.reduce_mean(predicted**2))
            if self.weighted and IS_KERAS_3:
                loss = self.optimizer.scale_loss(loss)
        variables = self.trainable_variables
        if self.weighted and not IS_KERAS_3:
            self.optimizer.minimize(loss, variables, tape=tape)
        else:
            grads = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(grads, variables))
        return self.compute_metrics(x, y, predicted, sample_weight)


def compiled(model):
    """The model with a loss, or one of each output with a weight."""
    losses, weights = "mse", None
    if model.outputs_type is not None:
        losses, weights = {"a": "mse", "b": "mae"}, {"a": 0.7, "b": 2.0}
    if model.outputs_type is list:
        losses, weights = list(losses.values()), list(weights.values())
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.01)),
        losses,
        loss_weights=weights,
        weighted_metrics=[],
    )
    return model


def _batches(model):
    """A dataset of global batches."""
    count = _SAMPLES if model.has_empty_shares else _SAMPLES_FOR_ALL
    return tf.data.Dataset.from_tensor_slices(_samples(model, count)).batch(
        _BATCH
    )


def _samples(model, count):
    """Features, labels and weights of samples, in the outputs' structure."""
    rng = np.random.default_rng(0)
    features = {
        "x": rng.normal(1, 1, [count, _WIDTH]).astype(np.float32),
        "id": rng.integers(0, 9, count),
    }
    labels = rng.normal(0, 1, [count, 1]).astype(np.float32)
    weights = rng.uniform(0.2, 2.0, count).astype(np.float32)
    if model.outputs_type is None:
        return features, labels, weights
    pairs = [(labels, 3 * labels), (weights, weights[::-1].copy())]
    if model.outputs_type is dict:
        return features, *(dict(zip("ab", pair)) for pair in pairs)
    return features, *pairs


def results(model, history, evaluated=()):
    """What training has come to."""
    logs = {name: np.asarray(v) for name, v in history.history.items()}
    return {
        "logs": {**logs, **dict(evaluated)},
        "variables": [np.asarray(v) for v in model.get_weights()],
        "tables": {table.name: export(table) for table in model.tables},
    }


def trained(strategy, make):
    """Trains on a dataset of global batches, as a user does.

    Args:
      strategy: tf.distribute.Strategy.
      make: function that makes a model.
    """
    with strategy.scope():
        model = compiled(make())
    data = _batches(model)
    history = model.fit(data, epochs=_EPOCHS, validation_data=data, verbose=0)
    return results(model, history)


def shares(worker, make):
    """As `trained`, on shares of sizes that no dataset would have."""
    with worker.strategy.scope():
        model = compiled(make())
    ends = np.cumsum([0, *np.ravel(_SHARES)])
    samples = _samples(model, ends[-1])

    def function(context):
        count = context.num_input_pipelines

        def generate():
            for step in range(len(_SHARES)):
                first = step * len(_SHARES[0])
                cuts = [first, first + 1, first + 2, first + 3]
                if count == 1:
                    cuts = [cuts[0], cuts[-1]]
                elif count == 2:
                    cuts = [cuts[0], cuts[1], cuts[-1]]
                mine = slice(*ends[cuts][context.input_pipeline_id :][:2])
                yield tf.nest.map_structure(operator.itemgetter(mine), samples)

        signature = tf.nest.map_structure(
            lambda v: tf.TensorSpec([None, *v.shape[1:]], v.dtype), samples
        )
        return tf.data.Dataset.from_generator(
            generate, output_signature=signature
        )

    data = function
    if worker.size == 1:
        data = function(tf.distribute.InputContext(1, 0, 1))
    history = model.fit(data, verbose=0)
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    evaluated = {f"evaluated {name}": v for name, v in evaluated.items()}
    return results(model, history, evaluated)


def refusal(strategy, make):
    """What `fit` refuses a model with."""
    with strategy.scope():
        model = compiled(make())
    try:
        model.fit(_batches(model), verbose=0)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return str(error)
    return ""


def late_step():
    """A model that weights its loss too late for its layers."""
    return OwnStep("batch_normalization", weighted=False)


LATE_STEP_REFUSAL = (
    "`train_step` of OwnStep must weight its loss, as layer "
    "'batch_normalization.*' sums over replicas.*Compute the loss in "
    "`compute_loss`.*scale_loss.*minimize"
)
MODELS = {
    "two_outputs_of_all": lambda: Towers("all", dict),
    "own_loss": lambda: OwnLoss("batch_normalization"),
    "own_step": lambda: OwnStep("dense", weighted=False),
    "own_weighted_step": lambda: OwnStep("batch_normalization", weighted=True),
    "list_of_outputs": lambda: Towers("added_loss", list),
}
# Models with one layer that sums over replicas.
SINGLE = {
    kind: lambda kind=kind: Towers(kind)
    for kind in (
        "batch_normalization",
        "keras_batch_normalization",
        "own_all_reduce",
        "softmax",
    )
}


def two_outputs_of_all(worker):
    return trained(worker.strategy, MODELS["two_outputs_of_all"])


def shares_of_two_outputs(worker):
    return shares(worker, MODELS["two_outputs_of_all"])


def own_loss(worker):
    return trained(worker.strategy, MODELS["own_loss"])


def own_step(worker):
    return trained(worker.strategy, MODELS["own_step"])


def own_weighted_step(worker):
    return trained(worker.strategy, MODELS["own_weighted_step"])


def list_of_outputs(worker):
    return shares(worker, MODELS["list_of_outputs"])


def refused_step(worker):
    return refusal(worker.strategy, late_step)


def assert_same(test, results, expected):
    """Checks the results of all workers, or of one process with replicas."""
    for result in results:
        for name, value in expected["logs"].items():
            test.assertAllClose(result["logs"][name], value, 1e-5, 1e-6, name)
        for one, other in zip(
            result["variables"], expected["variables"], strict=True
        ):
            test.assertAllClose(one, other, 1e-6, 1e-5)
    rows = merge_rows([result["tables"]["id"] for result in results])
    wanted = expected["tables"]["id"]["weights"]
    test.assertCountEqual(rows["weights"], wanted)
    for sign, row in wanted.items():
        test.assertAllClose(rows["weights"][sign], row, 1e-6, 1e-5)


def keras_batch_normalization(worker):
    return trained(worker.strategy, SINGLE["keras_batch_normalization"])


COMPARED = ["two_outputs_of_all", "shares_of_two_outputs", "own_weighted_step"]
# For runs that take longer.
OTHERS = [
    "own_loss",
    "own_step",
    "list_of_outputs",
    "keras_batch_normalization",
]
