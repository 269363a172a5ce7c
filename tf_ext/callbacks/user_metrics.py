# SPDX-License-Identifier: Apache-2.0
"""Metrics that are means over users, on a validation dataset in `fit`."""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ext._checks import check_count, refuse
from tf_ext._keras import keras
from tf_ext.metrics import user_means
from tf_ext.models.model import Model
from tf_ext.regimes import regime_of_model


class UserMetrics(keras.callbacks.Callback):
    """GAUC, or recall@k and NDCG@k, of a dataset after each epoch.

    They are put into the logs of the epoch, where the history and callbacks
    that follow in the list find them: `EarlyStopping(monitor="val_gauc")`.
    Under every strategy of `tf_ext.Model` they are those of the whole dataset,
    the same on all synchronous workers, which share it as in `predict`.

    The model is given the features with `training=False`. Labels, users and
    scores of the whole dataset are kept in memory, for recall and NDCG two
    numbers a label instead of scores: 24 bytes a sample or label.

    Args:
      dataset: finite tf.data.Dataset of batches `(features, labels)` or
        `(features, labels, sample_weight)`. For GAUC, labels of 0 and 1,
        `[batch_size]` or `[batch_size, 1]`. For recall and NDCG, indices of
        items, integers `[batch_size]` or `[batch_size, m]`, as of
        `tf_ext.metrics.recall_at_k`, with the same m in all batches; weights
        are ignored.
      user: string, the feature that has the user of a sample: integers or
        strings, `[batch_size]` or `[batch_size, 1]`. Gives `gauc`, as of
        `tf_ext.metrics.gauc`. Strings are grouped by their 64-bit fingerprint.
      recall_at: list of k; gives `recall@<k>`. The model's outputs are scores
        of all items, `[batch_size, items]`.
      ndcg_at: list of k; gives `ndcg@<k>`.
      output: name or index of the model's output, if it has several, and of
        its labels and weights. Labels or weights that are one tensor are those
        of every output.
      prefix: string, put before the names in logs.

    Attributes:
      results: dict from `gauc`, `recall@<k>`, `ndcg@<k>` to the
        `tf_ext.metrics.UserMean` of the last epoch, which also has how many
        users were left out.

    Raises:
      ValueError: not exactly one of `user` and a list of k, or another kind of
        argument; in `fit`, data of other shapes or values.

    Example:
    >>> model = tf_ext.Model(*[keras.Input([1], name="x")] * 2)
    >>> data = tf.data.Dataset.from_tensor_slices((
    ...     {"x": [[0.1], [0.3], [0.2]], "user": ["ann", "ann", "bob"]},
    ...     [0, 1, 0])).batch(2)
    >>> tf_ext.callbacks.UserMetrics(data, user="user").evaluate(model)
    {'gauc': UserMean(value=1.0, users=1, left_out=1)}
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        user: str | None = None,
        recall_at: Sequence[int] = (),
        ndcg_at: Sequence[int] = (),
        output: str | int | None = None,
        prefix: str = "val_",
    ) -> None:
        super().__init__()
        if not isinstance(dataset, tf.data.Dataset):
            refuse("UserMetrics", "dataset", "a tf.data.Dataset", dataset)
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            allowed = "finite, because users are counted at its end"
            refuse("UserMetrics", "dataset", allowed, dataset)
        for name, cuts in (("recall_at", recall_at), ("ndcg_at", ndcg_at)):
            if not isinstance(cuts, Sequence) or isinstance(cuts, str):
                refuse("UserMetrics", name, "a list of integers", cuts)
            for cut in cuts:
                check_count("UserMetrics", name, cut, 1)
        if (user is None) != bool(recall_at or ndcg_at):
            allowed = "given unless recall_at or ndcg_at is"
            refuse("UserMetrics", "user", allowed, user)
        self.dataset = dataset
        self.user = user
        self.recall_at = tuple(recall_at)
        self.ndcg_at = tuple(ndcg_at)
        self.output = output
        self.prefix = prefix
        self.results: dict[str, user_means.UserMean] = {}
        self._scoring: typing.Any = None

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        self.results = self.evaluate(self.model)
        if logs is not None:
            for name, result in self.results.items():
                logs[self.prefix + name] = result.value

    def evaluate(self, model: typing.Any) -> dict[str, user_means.UserMean]:
        """Computes the metrics of a model, outside of `fit`, too.

        Args:
          model: keras.Model. Under MultiWorkerMirroredStrategy, all workers
            have to call it.

        Returns:
          dict as `results`.
        """
        # From one pass: a dataset that shuffles has another order in the next.
        found = self._model_of(model).predict(self._batches(), verbose=0)
        if self.user is not None:
            return {
                "gauc": user_means.gauc(
                    *(np.asarray(found[name]) for name in _GAUC)
                )
            }
        labels = np.asarray(found["labels"])
        num_items = int(np.max(found["num_items"], initial=0))
        user_means.check_items("UserMetrics", labels, num_items)
        ranks = np.asarray(found["ranks"])
        if (ranks < 0).any():
            refuse("UserMetrics", "scores", "numbers that are not NaN", np.nan)
        items = user_means.distinct_items(labels)
        recalls = {
            f"recall@{k}": user_means.recall_of_ranks(items, ranks, k)
            for k in self.recall_at
        }
        return recalls | {
            f"ndcg@{k}": user_means.ndcg_of_ranks(items, ranks, k)
            for k in self.ndcg_at
        }

    def _batches(self) -> tf.data.Dataset:
        def named(*batch: typing.Any) -> dict[str, typing.Any]:
            if len(batch) not in (2, 3):
                allowed = "of batches (features, labels) or with weights"
                refuse("UserMetrics", "dataset", allowed, self.dataset)
            return dict(zip(("features", "labels", "weights"), batch))

        return self.dataset.map(named)

    def _model_of(self, model: typing.Any) -> typing.Any:
        """The model that computes what the metrics need of each sample."""
        if self._scoring is None or self._scoring.scored is not model:
            with regime_of_model(model).scope():
                self._scoring = Scoring(model, self.user, self.output)
        return self._scoring


_GAUC = ("users", "labels", "scores", "weights")


class Scoring(Model):
    """A model that passes on what belongs to its scores.

    Outputs then come in any order, but belong together, whichever process
    reads which sample.
    """

    def __init__(
        self, scored: typing.Any, user: str | None, output: str | int | None
    ) -> None:
        super().__init__(autocast=False)
        self.scored = scored
        self._user = user
        self._output = output

    def call(self, inputs: dict[str, typing.Any]) -> typing.Any:
        features = inputs["features"]
        scores = self.scored(features, training=False)
        if self._output is not None and isinstance(scores, tf.Tensor):
            allowed = "None for a model that has one output"
            refuse("UserMetrics", "output", allowed, self._output)
        scores = self._one(scores)
        labels = self._one(inputs["labels"])
        if self._user is None:
            return _ranks(labels, scores)
        weights = self._one(inputs.get("weights"))
        return _samples(_signs(features, self._user), labels, scores, weights)

    def _one(self, values: typing.Any) -> typing.Any:
        """What belongs to the output; one tensor belongs to all."""
        is_one = not isinstance(values, (dict, list, tuple))
        return (
            values
            if is_one or self._output is None
            else typing.cast(typing.Any, values)[self._output]
        )


def _samples(
    users: tf.Tensor,
    labels: typing.Any,
    scores: typing.Any,
    weights: typing.Any,
) -> dict[str, tf.Tensor]:
    """The arguments of `gauc` for a batch."""
    if weights is None:
        weights = tf.ones_like(scores)
    found = {"labels": labels, "scores": scores, "weights": weights}
    for name, values in found.items():
        found[name] = tf.cast(
            _vector(name, values),
            tf.float64 if values.dtype == tf.float64 else tf.float32,
        )
    return {"users": users, **found}


def _vector(name: str, values: typing.Any) -> tf.Tensor:
    """The values as `[batch_size]`."""
    if values.shape.rank == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.shape.rank != 1:
        allowed = "[batch_size] or [batch_size, 1], if `user` is given"
        refuse("UserMetrics", name, allowed, values.shape)
    return values


def _signs(features: typing.Any, user: str) -> tf.Tensor:
    """The users of a batch, int64 `[batch_size]`."""
    if not isinstance(features, dict) or user not in features:
        found = sorted(features) if isinstance(features, dict) else "no dict"
        allowed = f"the name of a feature of `dataset`, which has {found}"
        refuse("UserMetrics", "user", allowed, user)
    ids = features[user]
    if not isinstance(ids, tf.Tensor) or not (
        ids.dtype.is_integer or ids.dtype == tf.string
    ):
        allowed = "the name of a dense feature of integers or strings"
        refuse("UserMetrics", "user", allowed, user)
    ids = _vector(user, ids)
    if ids.dtype == tf.string:
        prints = tf.raw_ops.Fingerprint(data=ids, method="farmhash64")
        return tf.bitcast(prints, tf.int64)
    if ids.dtype == tf.uint64:
        return tf.bitcast(ids, tf.int64)
    return tf.cast(ids, tf.int64)


def _ranks(labels: typing.Any, scores: typing.Any) -> dict[str, tf.Tensor]:
    """The labels of a batch, and their ranks as of `recall_of_ranks`.

    Ranks are -1 where scores are NaN.
    """
    if scores.shape.rank != 2:
        allowed = "[batch_size, items] without `user`"
        refuse("UserMetrics", "scores", allowed, scores.shape)
    if labels.shape.rank == 1:
        labels = labels[:, tf.newaxis]
    if labels.shape.rank != 2 or not labels.dtype.is_integer:
        allowed = "integers, [batch_size] or [batch_size, m], without `user`"
        found = f"{labels.dtype.name} of shape {labels.shape}"
        refuse("UserMetrics", "labels", allowed, found)
    labels = tf.cast(labels, tf.int64)
    num_items = tf.shape(scores, tf.int64)[1]
    # Labels that are no items are refused when all are there.
    own = tf.gather(
        scores, tf.clip_by_value(labels, 0, num_items - 1), batch_dims=1
    )
    rising = tf.sort(scores, 1)
    below, up_to = (
        tf.searchsorted(rising, own, side, tf.int64)
        for side in ("left", "right")
    )
    none = tf.constant(0, tf.int64)
    never = tf.math.is_inf(own) & (own < 0)
    ranks = tf.stack(
        [num_items - up_to, tf.where(never, none, up_to - below)], -1
    )
    broken = tf.reduce_any(tf.math.is_nan(scores), 1)
    ranks = tf.where(broken[:, tf.newaxis, tf.newaxis], none - 1, ranks)
    return {
        "labels": labels,
        "ranks": ranks,
        "num_items": tf.fill(tf.shape(labels, tf.int64)[:1], num_items),
    }
