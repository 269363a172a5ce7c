# SPDX-License-Identifier: Apache-2.0
"""Draws items that a user did not choose, as negatives of a loss."""

import typing

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import check_count, is_finite, is_int, refuse
from tf_ext._keras import keras, tf_variable
from tf_ext.layers import top_k
from tf_ext.layers.alias_table import alias_table, weights_of
from tf_ext.layers.candidates import (
    ID_DTYPES,
    MISSING,
    load_ids,
    save_ids,
    to_ids,
)
from tf_ext.ops._stock.checks import check
from tf_ext.regimes import regime_in_scope
from tf_ext.tables.saving import keras_files

_NAME = "NegativeSampler"
# How often a negative that is excluded is drawn again.
_REDRAWS = 10


@keras.utils.register_keras_serializable(package="tf_ext")
class NegativeSampler(keras.layers.Layer):
    """Ids of random items, and which of them are negatives of a sample.

    An item is drawn, with replacement, with a probability proportional to
    `count ** power`, by an alias table: a draw takes the same time for any
    number of items. Without counts, all items are equally probable.

    An item that was chosen, or that `exclusions` name, is no negative of that
    sample. Where each sample has its own negatives, it is drawn again, up to
    10 times. `mask` tells what remains of such items, and where they are among
    shared negatives: pass it to the loss.

    Draws depend only on the seed, the number of steps so far, which is a weight
    of the layer and saved with it, and the replica or worker. So a run that is
    resumed goes on with the draws that it would have had, and replicas, and
    workers of every strategy, draw different negatives. Without `training=True`
    the step is not counted: each call of an evaluation draws the same.

    `index` sets the items. They are saved with the model like those of
    `tf_ext.layers.Retrieval`: in `.keras` and `.weights.h5` files and
    checkpoints, but not by `callbacks.TableSnapshot`.

    Args:
      max_items: int, at least 1, how many items there can be; each takes 24
        bytes, and the length of a string.
      num_negatives: int, at least 1, of a sample, or of all if shared.
      shared: bool, whether all samples have the same negatives. Their scores
        are then one product of matrices, and their rows are read once.
      power: float, at least 0, of the counts; 1 for popularity itself, less for
        a flatter distribution.
      id_dtype: "int64" or "string".
      seed: int of 64 bits.
      **kwargs: `name`.

    Call arguments:
      positives: integers, or strings, `[batch_size]` or `[batch_size, length]`:
        the ids of the items that were chosen.
      exclusions: ids of the same type, `[batch_size, n]`, dense or ragged, such
        as all items that a user has chosen. Ids that are not indexed have no
        effect: fill up with those. None for none.
      training: bool, whether the call counts as a step.

    Returns:
      When called, `(ids, log_expected_counts, mask)`. `ids` are of `id_dtype`:
      `[num_negatives]` if shared, else the shape of `positives` and
      `num_negatives`. `log_expected_counts`, float32 of the same shape, is the
      logarithm of how often the item is expected among `num_negatives` draws,
      for `tf_ext.layers.SampledSoftmax`. (It is a little larger for a sample
      that has its own negatives, by a term that all of them share, because
      excluded items are drawn again.) `mask`, bool of the shape of `positives`
      and `num_negatives`, is True for negatives.

    Raises:
      ValueError: an argument is out of its range, or has another shape or dtype
        than these.
      tf.errors.InvalidArgumentError: when called before `index`.

    References:
      [Rendle et al., 2009](https://arxiv.org/abs/1205.2618), BPR: uniform
      negatives; [Mikolov et al., 2013](https://arxiv.org/abs/1310.4546): the
      power of counts; [Walker, 1977](https://doi.org/10.1145/355744.355749):
      the alias table.

    Example:
    >>> sampler = tf_ext.layers.NegativeSampler(
    ...     max_items=4, num_negatives=3, power=0.5)
    >>> sampler.index([10, 20, 30, 40], counts=[100, 25, 4, 0])
    >>> positives, seen = tf.constant([10, 20]), tf.constant([[30], [-1]])
    >>> ids, log_counts, mask = sampler(positives, seen, training=True)
    >>> ids[0].numpy().tolist(), mask[0].numpy().tolist()
    ([20, 20, 20], [True, True, True])
    >>> tf.exp(log_counts[0]).numpy().round(2)  # 3 * 5 / 17
    array([0.88, 0.88, 0.88], dtype=float32)

    Hard negatives are the best of many by the model's scores:

    >>> many = tf_ext.layers.NegativeSampler(max_items=1000, num_negatives=100)
    >>> many.index(range(1000))
    >>> ids, _, mask = many(positives, training=True)
    >>> scores = tf.cast(ids, tf.float32)  # stands for a model
    >>> hard, mask = many.hardest(ids, scores, k=2, mask=mask)
    >>> hard.shape.as_list(), bool(tf.reduce_min(hard) > 900)
    ([2, 2], True)
    """

    def __init__(
        self,
        max_items: int,
        num_negatives: int = 1,
        shared: bool = False,
        power: float = 1.0,
        id_dtype: str = "int64",
        seed: int = 0,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        check_count(_NAME, "max_items", max_items, 1)
        check_count(_NAME, "num_negatives", num_negatives, 1)
        if not isinstance(shared, bool):
            refuse(_NAME, "shared", "True or False", shared)
        if not is_finite(power) or power < 0:
            refuse(_NAME, "power", "a number of at least 0", power)
        if id_dtype not in ID_DTYPES:
            allowed = " or ".join(map(repr, ID_DTYPES))
            refuse(_NAME, "id_dtype", allowed, id_dtype)
        if not is_int(seed) or not -(2**63) <= seed < 2**63:
            refuse(_NAME, "seed", "an integer of 64 bits", seed)
        self.max_items = int(max_items)
        self.num_negatives, self.shared = int(num_negatives), shared
        self.power, self.id_dtype, self.seed = float(power), id_dtype, int(seed)

        # Of known shapes: TensorFlow's workers end when they are passed a
        # variable of another one on a parameter server.
        def variable(name: str, dtype: str, *shape: int) -> tf.Variable:
            empty = tf.zeros(shape, dtype)
            return tf.Variable(empty, trainable=False, name=name)

        with tf.init_scope():
            # Keras has no weights of strings. A Checkpoint is tracked.
            self._stored = tf.train.Checkpoint(
                ids=variable("ids", id_dtype, self.max_items),
                probability=variable("probability", "float32", self.max_items),
                kept=variable("kept", "float32", self.max_items),
                alias=variable("alias", "int64", self.max_items),
                count=variable("count", "int64"),
            )
        self._step = self.add_weight(
            name="step",
            shape=(),
            dtype="int64",
            initializer="zeros",
            trainable=False,
        )
        self.built = True

    # The items

    @property
    def size(self) -> int:
        """The number of items."""
        return int(tf.convert_to_tensor(self._stored.count))

    def index(
        self, ids: typing.Any, counts: npt.ArrayLike | None = None
    ) -> None:
        """Replaces all items; between calls, and without a new trace.

        Args:
          ids: integers or strings `[n]`, distinct, at least one and at most
            `max_items`.
          counts: numbers `[n]`, at least 0, how often items are chosen. None if
            all are equally probable. An item of count 0 is not drawn, unless
            `power` is 0.

        Raises:
          ValueError: other shapes, dtypes or values, or an id twice. The items
            are unchanged.
        """
        owner = f"{_NAME}.index"
        found = to_ids(owner, ids, self.id_dtype)
        if not len(found):
            refuse(owner, "ids", "of at least one item", ids)
        if len(found) > self.max_items:
            allowed = f"of at most max_items={self.max_items}"
            refuse(owner, "ids", allowed, f"{len(found)} ids")
        weights = np.ones(len(found))
        if counts is not None:
            weights = weights_of(owner, counts, len(found), self.power)
        self._assign(found, weights / weights.sum())

    def _assign(
        self, ids: typing.Any, probability: npt.NDArray[typing.Any]
    ) -> None:
        # Files have these, from which a layer that is loaded makes its table.
        probability = probability.astype(np.float32)
        kept, alias = alias_table(probability.astype(np.float64))
        rest = self.max_items - len(ids)
        missing = MISSING[self.id_dtype]
        ids = tf.constant([*ids.tolist(), *[missing] * rest], self.id_dtype)
        stored = self._stored
        stored.ids.assign(ids)
        stored.probability.assign(_filled(probability, rest, np.float32))
        stored.kept.assign(_filled(kept, rest, np.float32))
        stored.alias.assign(_filled(alias, rest, np.int64))
        stored.count.assign(self.max_items - rest)

    # Draws

    def call(
        self,
        positives: tf.Tensor,
        exclusions: tf.Tensor | tf.RaggedTensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Draws negatives; see the class."""
        positives = self._checked("positives", positives, (1, 2))
        if exclusions is not None:
            exclusions = self._checked("exclusions", exclusions, (2,))
            if not exclusions.shape[:1].is_compatible_with(positives.shape[:1]):
                allowed = f"of the batch size of `positives`, {positives.shape}"
                refuse(_NAME, "exclusions", allowed, exclusions.shape)
        count = tf.convert_to_tensor(self._stored.count)
        text = (
            f"The NegativeSampler layer {self.name!r} has no items yet. Call "
            "its `index`, or load a model that has items."
        )
        with tf.control_dependencies(check(count > 0, text)):
            seed = self._next_seed(bool(training))
        if self.shared:
            places = self._places(seed, [self.num_negatives], count)
            ids = _gather(self._stored.ids, places)
            mask = tf.not_equal(ids, positives[..., tf.newaxis])
            if exclusions is not None:
                batch = tf.shape(positives, tf.int64)[0]
                hits = top_k.are_members(ids, exclusions, batch)
                if positives.shape.rank == 2:
                    hits = hits[:, tf.newaxis]
                mask &= tf.logical_not(hits)
        else:
            places, mask = self._own_places(seed, positives, exclusions, count)
            ids = _gather(self._stored.ids, places)
        probability = _gather(self._stored.probability, places)
        expected = tf.math.log(probability * float(self.num_negatives))
        return ids, expected, mask

    def hardest(
        self,
        ids: tf.Tensor,
        scores: tf.Tensor,
        k: int,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The negatives with the highest scores.

        Embed `ids` with `training=False` to score them, and embed the result to
        train on it: what is not chosen then gets no row and no gradient.

        Args:
          ids: as a call returns them, `[num_negatives]` or `[...,
            num_negatives]`.
          scores: floats `[..., num_negatives]`, those of a model.
          k: int, at least 1 and at most `num_negatives`.
          mask: bool of the shape of `scores`, which ids are negatives. None
            if all are.

        Returns:
          `(ids, mask)`, both `[..., k]`, the highest scores first.

        Raises:
          ValueError: an argument is out of its range, or has another shape or
            dtype than these.
        """
        owner = f"{_NAME}.hardest"
        check_count(owner, "k", k, 1)
        if k > self.num_negatives:
            refuse(owner, "k", f"at most num_negatives={self.num_negatives}", k)
        scores = tf.convert_to_tensor(scores)
        if not scores.dtype.is_floating or not scores.shape.rank:
            allowed = "floats [..., num_negatives]"
            found = f"{scores.dtype.name} {scores.shape}"
            refuse(owner, "scores", allowed, found)
        scores = tf.stop_gradient(tf.cast(scores, tf.float32))
        mask = tf.ones_like(scores, tf.bool) if mask is None else mask
        scores = tf.where(mask, scores, -float("inf"))
        _, chosen = tf.math.top_k(scores, k)
        dims = scores.shape.rank - 1
        mask = tf.gather(mask, chosen, batch_dims=dims)
        shared = ids.shape.rank == 1
        ids = tf.gather(ids, chosen, batch_dims=0 if shared else dims)
        return ids, mask

    def _own_places(
        self,
        seed: tf.Tensor,
        positives: tf.Tensor,
        exclusions: typing.Any,
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Items of each sample, and which of them are its negatives."""
        shape = tf.concat([tf.shape(positives), [self.num_negatives]], 0)
        static = [*positives.shape, self.num_negatives]

        def negatives(places: tf.Tensor) -> tf.Tensor:
            ids = _gather(self._stored.ids, places)
            mask = tf.not_equal(ids, positives[..., tf.newaxis])
            if exclusions is not None:
                width = tf.reduce_prod(shape[1:])
                flat = tf.reshape(ids, [shape[0], width])
                hits = top_k.is_member(flat, exclusions)
                mask &= tf.logical_not(tf.reshape(hits, shape))
            return mask

        def redraw(
            times: tf.Tensor, places: tf.Tensor, mask: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            other = self._places(tf.random.fold_in(seed, times), shape, count)
            places = tf.where(mask, places, other)
            places.set_shape(static)
            return times + 1, places, negatives(places)

        places = self._places(seed, shape, count)
        places.set_shape(static)
        _, places, mask = tf.while_loop(
            lambda times, _, mask: (
                (times < _REDRAWS) & tf.logical_not(tf.reduce_all(mask))
            ),
            redraw,
            (tf.constant(0, tf.int64), places, negatives(places)),
        )
        return places, mask

    def _places(
        self, seed: tf.Tensor, shape: typing.Any, count: tf.Tensor
    ) -> tf.Tensor:
        """Places of random items, int64."""
        # 53 bits, for the place and for the comparison: 2^-20 of a
        # probability with 8 billion items.
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        uniform *= tf.cast(count, tf.float64)
        places = tf.minimum(tf.cast(uniform, tf.int64), count - 1)
        rest = tf.cast(uniform - tf.cast(places, tf.float64), tf.float32)
        kept = rest < _gather(self._stored.kept, places)
        return tf.where(kept, places, _gather(self._stored.alias, places))

    def _next_seed(self, counts: bool) -> tf.Tensor:
        """The seed of a step in a replica of a worker: int64 `[2]`."""
        stored = tf_variable(self._step)
        if not counts or not isinstance(stored, tf.Variable):
            step = tf.convert_to_tensor(stored)
        elif isinstance(stored, tf.distribute.DistributedValues) and (
            tf.distribute.in_cross_replica_context()
        ):
            step = tf.identity(tf.convert_to_tensor(stored))
            with tf.control_dependencies([step]):
                stored.assign_add(1)
        else:
            # Reads and adds at once: workers of parameter servers share it.
            step = tf.raw_ops.ResourceCountUpTo(
                resource=stored.handle, limit=2**63 - 1, T=tf.int64
            )
        seed = tf.stack([tf.constant(self.seed, tf.int64), step])
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else context.replica_id_in_sync_group
        for own in (replica, regime_in_scope().processes.rank):
            seed = tf.random.fold_in(seed, tf.cast(own, tf.int64))
        return seed

    def _checked(
        self, argument: str, ids: typing.Any, ranks: tuple[int, ...]
    ) -> typing.Any:
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.convert_to_tensor(ids)
        dtype = ids.dtype
        if self.id_dtype == "int64" and dtype.is_integer:
            ids = tf.cast(ids, tf.int64)
        if ids.dtype != self.id_dtype or ids.shape.rank not in ranks:
            shape = "[batch_size, n]"
            if ranks == (1, 2):
                shape = "[batch_size] or [batch_size, length]"
            found = f"{dtype.name} {ids.shape}"
            refuse(_NAME, argument, f"{self.id_dtype} {shape}", found)
        return ids

    def compute_output_spec(
        self,
        positives: typing.Any,
        exclusions: typing.Any = None,
        training: bool | None = None,
    ) -> typing.Any:
        """The results' shapes for Keras 3's functional models."""
        own = (*positives.shape, self.num_negatives)
        ids = (self.num_negatives,) if self.shared else own
        return (
            keras.KerasTensor(ids, self.id_dtype),
            keras.KerasTensor(ids, "float32"),
            keras.KerasTensor(own, "bool"),
        )

    # Saving

    def save_own_variables(self, store: typing.Any) -> None:
        """Saves the items and the step in Keras's files."""
        store["step"] = np.asarray(tf.convert_to_tensor(self._step))
        ids = tf.convert_to_tensor(self._stored.ids).numpy()[: self.size]
        save_ids(store, ids, self.id_dtype)
        probability = tf.convert_to_tensor(self._stored.probability)
        store["probability"] = probability.numpy()[: self.size]

    def load_own_variables(self, store: typing.Any) -> None:
        """Replaces the items and the step by saved ones."""
        ids = load_ids(store, self, "items of NegativeSampler")
        probability = np.asarray(store["probability"], np.float64)
        if len(probability) != len(ids):
            raise ValueError(
                f"Layer {self.name!r} cannot be loaded: the file has "
                f"{len(ids)} ids, but {len(probability)} probabilities."
            )
        if len(ids) > self.max_items:
            raise ValueError(
                f"Layer {self.name!r} cannot be loaded: the file has "
                f"{len(ids)} items, more than max_items={self.max_items}."
            )
        if not keras_files.checks_only():
            self._step.assign(np.asarray(store["step"]))
            self._assign(ids, probability)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "max_items": self.max_items,
            "num_negatives": self.num_negatives,
            "shared": self.shared,
            "power": self.power,
            "id_dtype": self.id_dtype,
            "seed": self.seed,
        }


def _gather(variable: tf.Variable, places: tf.Tensor) -> tf.Tensor:
    # Also of variables that a strategy splits; only what is asked for is sent.
    return tf.nn.embedding_lookup(variable, places)


def _filled(
    values: npt.NDArray[typing.Any], rest: int, dtype: type
) -> npt.NDArray[typing.Any]:
    return np.pad(values.astype(dtype), (0, rest))
