# SPDX-License-Identifier: Apache-2.0
"""How much a model's predictions depend on each of its columns."""

import contextlib
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import check_count, refuse
from tf_ext._keras import keras
from tf_ext.analysis.results import ColumnLoss, Importance
from tf_ext.analysis.samples import Samples, one_of
from tf_ext.metrics import user_means
from tf_ext.regimes import regime_of_model

_OWNER = "column_importance"
_SHUFFLE, _LEAVE_OUT = "shuffle", "leave_out"
_Array = npt.NDArray[typing.Any]


def column_importance(
    model: typing.Any,
    data: tf.data.Dataset,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    method: str = "shuffle",
    metric: Callable[..., typing.Any] | None = None,
    missing: Mapping[str, typing.Any] | None = None,
    output: str | int | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> Importance:
    """Measures what a metric loses without the information of each column.

    `method="shuffle"`: a column's values are those of other samples, by a
    random permutation of all samples. The interval of a column is that of 95 %
    for the loss by one more shuffle: `mean +- t * s * sqrt(1 + 1 / repeats)`,
    where s is the standard deviation of the losses, and t the quantile of
    Student's distribution. If a column is independent of labels and other
    columns, the unshuffled data are such a shuffle, with loss 0: its interval
    then contains 0 in 95 of 100 cases.

    `method="leave_out"`: no sample has values of the column. This is not
    random; the interval is that of 95 % over samples that are drawn with
    replacement (bootstrap), `loss +- t * s`. Ragged and sparse features have
    empty bags; `missing` has the values of dense features.

    Use data that the model was not trained on: it has learned the chance
    correlations of its training data. Columns with the same information, such
    as a city and its zip code, can each be shuffled with little loss. A shuffle
    may combine values that never occur together.

    The model predicts with `training=False`, by its own `predict`, 1 + repeats
    times per column, or twice if left out: rows are neither created nor
    counted, and nothing is trained. All samples are kept in memory: use
    `data.take(n)` for fewer.

    Args:
      model: keras.Model, in one process, MirroredStrategy included.
      data: finite tf.data.Dataset of batches `(features, labels)` or
        `(features, labels, weights)`. Features are a dict of dense, ragged and
        sparse tensors; dense ones have one shape in all batches. For AUC,
        labels are 0 or 1, `[batch_size]` or `[batch_size, 1]`.
      columns: list of features to measure, each alone; or dict from the name
        of a column to a list of features that are shuffled or left out
        together, such as ids and their weights, whose bags must have the same
        sizes, or what a crossed column reads. None: each feature alone.
      method: string, "shuffle" or "leave_out".
      metric: function `(labels, predictions)` of NumPy arrays, or `(labels,
        predictions, weights)` if data have weights, to a number of which more
        is better. None: the exact AUC, as of `tf_ext.metrics.gauc` for one
        user.
      missing: dict from the names of dense features to the value that stands
        for a missing one, as the `missing` of `category_column`; for
        "leave_out".
      output: name or index of the model's output and of its labels and
        weights, if it has several.
      repeats: int, at least 2, the number of shuffles, which are the same for
        all columns, or of bootstrap samples.
      seed: int, at least 0. Equal seeds give equal shuffles.

    Returns:
      Importance, whose columns are sorted by loss. Its method `plot` draws
      them.

    Raises:
      ValueError: another kind of argument or data, or a model under a strategy
        of several processes.

    References:
      [Breiman, 2001](https://doi.org/10.1023/A:1010933404324), section 10;
      [Fisher et al., 2019](https://jmlr.org/papers/v20/18-760.html), where the
      loss is called model reliance.

    Example:
    >>> inputs = {name: keras.Input([1], name=name) for name in "abc"}
    >>> weighted = [
    ...     keras.layers.Rescaling(weight)(inputs[name])
    ...     for name, weight in (("a", 2.0), ("b", 1.0), ("c", 0.0))]
    >>> model = tf_ext.Model(inputs, keras.layers.Add()(weighted))
    >>> rng = np.random.default_rng(1)
    >>> features = {name: rng.normal(size=[500, 1]) for name in "abc"}
    >>> labels = 2 * features["a"] + features["b"] > 0
    >>> data = tf.data.Dataset.from_tensor_slices((features, labels))
    >>> importance = tf_ext.analysis.column_importance(model, data.batch(100))
    >>> [column.name for column in importance.columns]
    ['a', 'b', 'c']
    >>> importance.columns[-1].loss  # The predictions do not depend on it.
    0.0
    """
    _check_arguments(model, method, metric, missing, repeats, seed)
    regime = regime_of_model(model)
    if not regime.placement.has_all:
        allowed = (
            "in one process, as samples are shuffled in its memory: load it in "
            "a process without a strategy"
        )
        refuse(_OWNER, "model", allowed, f"one under {regime.strategy_name}")
    samples = Samples(data, output, missing or {})
    groups = _groups(samples, columns, method)
    scoring = _Scoring(model, samples, metric, output)
    before = scoring.predict()
    measure = _shuffled if method == _SHUFFLE else _left_out
    losses = [
        measure(scoring, before, name, features, repeats, seed)
        for name, features in groups.items()
    ]
    return Importance(
        metric=scoring.name,
        baseline=scoring.value(before),
        method=method,
        columns=tuple(sorted(losses, key=lambda column: -column.loss)),
    )


class _Scoring:
    """Predictions of a model, and their metric."""

    def __init__(
        self,
        model: typing.Any,
        samples: Samples,
        metric: Callable[..., typing.Any] | None,
        output: str | int | None,
    ) -> None:
        self.samples = samples
        self.name = "AUC"
        if metric is not None:
            self.name = getattr(metric, "__name__", type(metric).__name__)
        self._model = model
        self._metric = metric or _auc
        self._output = output

    def predict(
        self, features: Sequence[str] = (), order: npt.ArrayLike | None = None
    ) -> _Array:
        """Predictions of all samples, with arguments of `Samples.batches`."""
        batches = self.samples.batches(features, order)
        found = self._model.predict(batches, verbose=0)
        found = one_of(found, self._output, "model's outputs")
        if found.dtype.kind == "f" and np.isnan(found).any():
            raise ValueError(
                f"Predictions of the model must be numbers, but are NaN for "
                f"{np.isnan(found).sum()} of {found.size}."
            )
        return found

    def value(
        self, predictions: _Array, which: npt.NDArray[np.int64] | None = None
    ) -> float:
        """The metric of the samples of these numbers; None: of all."""
        arrays = [self.samples.labels, predictions]
        if self.samples.weights is not None:
            arrays.append(self.samples.weights)
        if which is not None:
            arrays = [array[which] for array in arrays]
        value = float(self._metric(*arrays))
        if not math.isfinite(value):
            hint = ": it needs samples of both labels" * (self._metric is _auc)
            raise ValueError(
                f"The metric {self.name} of {len(arrays[0])} samples must be "
                f"finite, but is {value}{hint}."
            )
        return value


def _auc(
    labels: _Array, scores: _Array, weights: _Array | None = None
) -> float:
    return user_means.gauc(np.zeros(len(labels), int), labels, scores, weights)[
        0
    ]


def _shuffled(
    scoring: _Scoring,
    before: _Array,
    name: str,
    features: Sequence[str],
    repeats: int,
    seed: int,
) -> ColumnLoss:
    baseline = scoring.value(before)
    losses = []
    for repeat in range(repeats):
        # For each column the same, whichever others are measured.
        rng = np.random.default_rng([seed, repeat])
        order = rng.permutation(scoring.samples.size)
        with _naming(name):
            after = scoring.predict(features, order)
        losses.append(baseline - scoring.value(after))
    loss = float(np.mean(losses))
    half = _half_width(losses) * math.sqrt(1 + 1 / repeats)
    return ColumnLoss(name, loss, loss - half, loss + half, tuple(losses))


def _left_out(
    scoring: _Scoring,
    before: _Array,
    name: str,
    features: Sequence[str],
    repeats: int,
    seed: int,
) -> ColumnLoss:
    size = scoring.samples.size
    with _naming(name):
        after = scoring.predict(features, np.full(size, size))
    loss = scoring.value(before) - scoring.value(after)
    losses = []
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        drawn = rng.integers(size, size=size)
        losses.append(
            scoring.value(before, drawn) - scoring.value(after, drawn)
        )
    half = _half_width(losses)
    return ColumnLoss(name, loss, loss - half, loss + half, tuple(losses))


@contextlib.contextmanager
def _naming(column: str) -> Iterator[None]:
    """Adds to an error of the model which column was changed."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        error.add_note(
            f"This happened after column {column!r} was changed. Features "
            "whose bags must have the same sizes, such as ids and their "
            "weights, have to be one column: columns={'tags': ['tags', "
            "'weights']}"
        )
        raise


def _half_width(losses: Sequence[float]) -> float:
    """Of the interval of 95 % that Student's distribution gives."""
    freedom = len(losses) - 1
    return _t_quantile(freedom) * float(np.std(losses, ddof=1))


def _t_quantile(freedom: int) -> float:
    """What a value of Student's distribution exceeds in 5 %, by its size."""
    # P(|T| > t) = I(freedom / 2, 1 / 2; x) with x = freedom / (freedom + t^2).
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        exceeds = tf.math.betainc(
            *(np.float64(v) for v in (freedom / 2, 0.5, x))
        )
        low, high = (x, high) if exceeds < 0.05 else (low, x)
    return math.sqrt(freedom * (1 - low) / low)


def _check_arguments(
    model: object,
    method: object,
    metric: object,
    missing: object,
    repeats: object,
    seed: object,
) -> None:
    if not isinstance(model, keras.Model):
        refuse(_OWNER, "model", "a keras.Model", model)
    if method not in (_SHUFFLE, _LEAVE_OUT):
        refuse(_OWNER, "method", f"{_SHUFFLE!r} or {_LEAVE_OUT!r}", method)
    if metric is not None and not callable(metric):
        refuse(_OWNER, "metric", "a function or None", metric)
    if missing is not None and not isinstance(missing, Mapping):
        refuse(_OWNER, "missing", "a dict or None", missing)
    if missing and method == _SHUFFLE:
        refuse(_OWNER, "missing", f"None unless method={_LEAVE_OUT!r}", missing)
    check_count(_OWNER, "repeats", repeats, 2)
    check_count(_OWNER, "seed", seed, 0)


def _groups(
    samples: Samples, columns: typing.Any, method: str
) -> dict[str, Sequence[str]]:
    """The features of each column to measure, checked."""
    columns = samples.names if columns is None else columns
    allowed = "a list of features, or a dict from names to lists of features"
    if isinstance(columns, str) or not isinstance(columns, (Mapping, Sequence)):
        refuse(_OWNER, "columns", allowed, columns)
    if not isinstance(columns, Mapping):
        columns = {name: [name] for name in columns}
    if not columns:
        refuse(_OWNER, "columns", allowed, columns)
    for features in columns.values():
        if (
            isinstance(features, str)
            or not isinstance(features, Sequence)
            or not features
        ):
            refuse(_OWNER, "columns", allowed, columns)
        for feature in features:
            samples.check_name("columns", feature)
            if method == _LEAVE_OUT and feature not in samples.optional:
                allowed = (
                    f"given for the dense feature {feature!r}: the value that "
                    "stands for a missing one"
                )
                refuse(_OWNER, "missing", allowed, None)
    return dict(columns)
