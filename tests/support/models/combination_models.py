# SPDX-License-Identifier: Apache-2.0
"""The models of the combination test, on tables and on dense matrices."""

import json

import tensorflow as tf
from oracles.combination_axes import Program
from oracles.combination_data import (
    DIM,
    age_boundaries,
    click_key,
    features_of,
    vocabulary_of,
)

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

_PACKAGE = "combinations"
_RATE = 0.1


def _register(cls):
    return keras.utils.register_keras_serializable(package=_PACKAGE)(cls)


def make(program):
    """A compiled model of a program, made under the strategy in scope."""
    make_model = _functional if program.model == "functional" else _subclassed
    model = make_model(program)
    optimizer = tf_ext.optimizers.Optimizer(_optimizer(program))
    if program.optimizer == "scaled" and not IS_KERAS_3:
        # It goes outside there.
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    _compile(model, program, optimizer)
    return model


def make_twin(program):
    """The same model on dense matrices of Keras, compiled likewise."""
    signs = {c: _signs_of(c) for c in columns_of(program)}
    inputs = {
        c.name: keras.Input([len(its_signs)], name=c.name)
        for c, its_signs in signs.items()
    }
    inputs["number"] = keras.Input([2], name="number")
    embedding = _DenseFeatures(program, signs)
    model = keras.Model(inputs, _Network(program, embedding)(inputs))
    embedding.set_rows()
    _compile(model, program, _optimizer(program))
    return model


def _signs_of(column):
    """The signs of all values of a column."""
    bags = tf_ext.feature_column.columns_to_bags(
        [column], vocabulary_of(column)
    )
    return bags.signs


def has_twin(program):
    """Whether a dense matrix is trained as the rows of the program's table.

    Rules that move rows without a gradient, and what only tables have, are
    compared with tables in one process.
    """
    return (
        program.table in ("sgd", "several")
        and program.optimizer not in ("adam", "scaled")
        and program.layer != "clicks"
        and program.columns != "sequence"
        and program.precision == "float32"
        # The norm of a table is that of its columns together.
        and (program.table == "several" or program.optimizer != "clipnorm")
    )


# Tables and columns.


def _table(program, name="rows"):
    rules = tf_ext.optimizers
    options = {
        "sgd": {"optimizer": rules.SparseSGD()},
        "several": {"optimizer": rules.SparseSGD()},
        "adagrad": {"optimizer": rules.SparseAdagrad(_RATE)},
        "default": {},
        "adam": {"optimizer": rules.SparseAdam(0.01, epsilon=1e-2)},
        "ftrl": {"optimizer": rules.SparseFtrl(_RATE)},
        "momentum": {"optimizer": rules.SparseSGD(_RATE, momentum=0.9)},
        "float16": {
            "optimizer": rules.SparseAdagrad(_RATE),
            "dtype": "float16",
        },
        "evicted": {
            "optimizer": rules.SparseSGD(),
            "eviction": tf_ext.eviction.Unseen(steps=2),
        },
        "admitted": {
            "optimizer": rules.SparseSGD(),
            "admission": tf_ext.admission.Count(2),
            "unknown": "zeros",
        },
        "shared": {
            "optimizer": rules.SparseSGD(),
            "admission": tf_ext.admission.Count(2),
            "unknown": "shared",
            "unknown_buckets": 3,
            "l2": 0.05,
        },
    }[program.table]
    if program.layer == "clicks":
        options["statistics"] = ["show", "click"]
    return tf_ext.SparseTable(name, DIM, seed=3, **options)


def columns_of(program):
    """The columns of a program's layer, a list."""
    fc = tf_ext.feature_column
    user = fc.category_column("user", hashing="identity")
    return {
        "ids": [user, fc.category_column("word")],
        "weighted": [
            user,
            fc.category_column("tags", combiner="mean", weights="tag_weights"),
        ],
        "crossed": [user, fc.crossed_column(["user", "word"])],
        "buckets": [user, fc.category_column("age", boundaries=[20.0, 40.0])],
        "sequence": [
            user,
            fc.sequence_category_column(
                fc.category_column("tags"), max_length=3
            ),
        ],
        "optional": [user, fc.category_column("absent", optional=True)],
        "times": [
            fc.time_column("seen", "weekday"),
            fc.age_column("made", "seen", age_boundaries(), missing=0),
        ],
    }[program.columns]


def _embedding(program):
    columns = columns_of(program)
    options = {"concatenate": False}
    if program.layer == "clicks":
        options.update(click=click_key(), cvm=True)
    if program.table == "several":
        first, second = columns
        tables = {
            _table(program, "rows"): [first],
            _table(program, "others"): [second],
        }
        return tf_ext.layers.EmbeddingFeatures(tables, **options)
    return tf_ext.layers.EmbeddingFeatures(columns, _table(program), **options)


# Models.


def _kernel(seed):
    return {
        "kernel_initializer": keras.initializers.GlorotUniform(seed=seed),
    }


@_register
class AllReduced(keras.layers.Layer):
    """Subtracts the mean over all replicas, as a user would write it."""

    def call(self, inputs):
        sums = tf.reduce_sum(inputs, 0)
        count = tf.cast(tf.shape(inputs)[:1], inputs.dtype)
        both = tf.concat([sums, count], 0)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            both = context.all_reduce(tf.distribute.ReduceOp.SUM, both)
        return inputs - both[:-1] / tf.maximum(both[-1], 1)


@_register
class AddedLoss(keras.layers.Layer):
    """Adds the mean square of what it passes on to the loss."""

    def call(self, inputs):
        squares = tf.cast(tf.square(inputs), tf.float32)
        size = tf.cast(tf.size(squares), tf.float32)
        self.add_loss(0.1 * tf.math.divide_no_nan(tf.reduce_sum(squares), size))
        return inputs


@_register
class Pooled(keras.layers.Layer):
    """Sums embeddings over positions, of which those without an id are 0."""

    def call(self, inputs):
        return tf.reduce_sum(inputs, 1)

    def compute_mask(self, inputs, mask=None):
        return None


class _Network:
    """What all models of a program compute from features by key."""

    def __init__(self, program, embedding):
        self.embedding = embedding
        self.program = program
        self.pool = Pooled()
        self.concatenate = keras.layers.Concatenate()
        regularizer = (
            keras.regularizers.L2(0.05)
            if program.loss == "regularized"
            else None
        )
        self.hidden = keras.layers.Dense(
            5, "tanh", kernel_regularizer=regularizer, **_kernel(1)
        )
        self.between = []
        if program.layer not in ("none", "clicks"):
            make_layer = {
                "batch_normalization": tf_ext.layers.BatchNormalization,
                "synchronized": _synchronized,
                "all_reduce": AllReduced,
            }[program.layer]
            self.between.append(make_layer())
        if program.loss == "added":
            self.between.append(AddedLoss())
        names = ["a", "b"] if program.loss == "two_outputs" else ["a"]
        self.heads = [
            keras.layers.Dense(
                1,
                "sigmoid",
                name=name,
                dtype="float32",
                **_kernel(seed),
            )
            for seed, name in enumerate(names, 2)
        ]

    def __call__(self, features, training=None):
        named = self.embedding(features, training=training)
        if self.program.table == "several":
            named = {k: v for one in named.values() for k, v in one.items()}
        parts = []
        for column in columns_of(self.program):
            part = named[column.name]
            parts.append(self.pool(part) if len(part.shape) == 3 else part)
        cast = keras.ops.cast if IS_KERAS_3 else tf.cast
        number = cast(features["number"], parts[0].dtype)
        values = self.concatenate([*parts, number])
        values = self.hidden(values)
        for layer in self.between:
            if isinstance(layer, keras.layers.BatchNormalization):
                values = layer(values, training=training)
            else:
                values = layer(values)
        outputs = {head.name: head(values) for head in self.heads}
        return outputs if len(outputs) > 1 else outputs["a"]


def _synchronized():
    return keras.layers.BatchNormalization(synchronized=True)


def _functional(program):
    inputs = {
        key: keras.Input(
            spec.shape[1:],
            dtype=spec.dtype,
            name=key,
            ragged=isinstance(spec, tf.RaggedTensorSpec),
        )
        for key, spec in features_of(program).items()
    }
    return tf_ext.Model(inputs, _Network(program, _embedding(program))(inputs))


class _OfProgram:
    """Saves the program of a model, of which it is made again."""

    def get_config(self):
        return {"program": json.loads(self._program.to_json())}

    @classmethod
    def from_config(cls, config):
        return cls(Program(**config["program"]))


@_register
class Subclassed(_OfProgram, tf_ext.Model):
    """A model of features by key."""

    def __init__(self, program):
        super().__init__()
        self._program = program
        self.network = _tracked(self, program)

    def call(self, inputs, training=None):
        return self.network(inputs, training)


@_register
class Nested(_OfProgram, tf_ext.Model):
    """A model that holds another one."""

    def __init__(self, program):
        super().__init__()
        self._program = program
        self.inner = Subclassed(program)

    def call(self, inputs, training=None):
        return self.inner(inputs, training=training)


@_register
class Listed(_OfProgram, tf_ext.Model):
    """A model of a tuple of features, in the order of their keys."""

    def __init__(self, program):
        super().__init__()
        self._program = program
        self.network = _tracked(self, program)

    def call(self, inputs, training=None):
        keys = sorted(features_of(self._program))
        return self.network(dict(zip(keys, inputs, strict=True)), training)


@_register
class Signature(_OfProgram, tf_ext.Model):
    """A model whose `call` has an argument of its own."""

    def __init__(self, program):
        super().__init__()
        self._program = program
        self.network = _tracked(self, program)

    def call(self, inputs, training=None, mask=None, scale=1.0):
        del mask
        outputs = self.network(inputs, training)
        return tf.nest.map_structure(lambda v: v * scale, outputs)


def _tracked(model, program):
    """A network whose layers are attributes of a model, as users write it."""
    network = _Network(program, _embedding(program))
    model.embedding = network.embedding
    model.hidden = network.hidden
    for index, layer in enumerate(network.between):
        setattr(model, f"between_{index}", layer)
    for head in network.heads:
        setattr(model, f"head_{head.name}", head)
    return network


def _subclassed(program):
    return {
        "subclassed": Subclassed,
        "nested": Nested,
        "listed": Listed,
        "signature": Signature,
    }[program.model](program)


# The twin.


class _DenseFeatures:
    """The rows of tables as the matrices of Dense layers without a bias.

    Their inputs have, for each sample, the weight of each sign in the bag.
    """

    def __init__(self, program, signs):
        self._program = program
        self._signs = signs
        self._layers = {
            column: keras.layers.Dense(DIM, use_bias=False) for column in signs
        }

    def __call__(self, features, training=None):
        del training
        outputs = {
            c.name: one(features[c.name]) for c, one in self._layers.items()
        }
        several = self._program.table == "several"
        return {"all": outputs} if several else outputs

    def set_rows(self):
        """Gives the matrices the initial rows of the tables."""
        names = ["rows", "others"] if self._program.table == "several" else []
        tables = [_table(self._program, name) for name in names or ["rows"]]
        for index, (column, layer) in enumerate(self._layers.items()):
            table = tables[index] if names else tables[0]
            layer.kernel.assign(table.pull(self._signs[column]))


# Compiling.


def _optimizer(program):
    optimizers = keras.optimizers
    schedule = optimizers.schedules.ExponentialDecay(_RATE, 2, 0.8)
    accumulation = {"gradient_accumulation_steps": 2} if IS_KERAS_3 else {}
    return {
        "sgd": lambda: optimizers.SGD(_RATE),
        "adam": lambda: optimizers.Adam(0.01, epsilon=1e-2),
        "clipnorm": lambda: optimizers.SGD(_RATE, clipnorm=0.05),
        "global_clipnorm": lambda: optimizers.SGD(_RATE, global_clipnorm=0.05),
        "schedule": lambda: optimizers.SGD(schedule),
        "accumulated": lambda: optimizers.SGD(_RATE, **accumulation),
        "skip": lambda: optimizers.SGD(_RATE),
        "scaled": lambda: (
            keras.mixed_precision.LossScaleOptimizer(optimizers.SGD(_RATE))
            if IS_KERAS_3
            else optimizers.SGD(_RATE)
        ),
    }[program.optimizer]()


def _compile(model, program, optimizer):
    names = ["a", "b"] if program.loss == "two_outputs" else ["a"]
    losses = {"a": "binary_crossentropy", "b": "mse"}
    metrics = {"metrics": {name: ["mae"] for name in names}}
    weighted = {"weighted_metrics": {name: ["mse"] for name in names}}
    if len(names) > 1:
        options = {
            "loss": losses,
            "loss_weights": {"a": 1.0, "b": 0.5},
            **metrics,
            **weighted,
        }
    else:
        options = {
            "loss": losses["a"],
            "metrics": ["mae"],
            "weighted_metrics": ["mse"],
        }
    model.compile(optimizer, **options)
