# SPDX-License-Identifier: Apache-2.0
"""Metrics that are means over users: GAUC, recall@k and NDCG@k.

They are functions of NumPy arrays, as they need all samples of a user at once.
`tf_ext.callbacks.UserMetrics` computes them in `fit`.
"""

import typing

import numpy as np
import numpy.typing as npt

from tf_ext._checks import check_count, refuse

# Scores that are compared at a time.
_BLOCK = 1 << 22
# More than any number of items.
_MOST = 1 << 40


class UserMean(typing.NamedTuple):
    """A mean over users, and how many of them it is of.

    Attributes:
      value: float; NaN if it is of no user.
      users: int, the users that it is of.
      left_out: int, the users for which the metric is not defined.
    """

    value: float
    users: int
    left_out: int


def gauc(
    users: npt.ArrayLike,
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None = None,
) -> UserMean:
    """The mean over users of the AUC among a user's own samples.

    A user has the weight of its samples: their number ("impressions"), or the
    sum of their weights. The AUC is exact, the probability that a sample of
    label 1 has a higher score than one of label 0, where equal scores count
    half. Users whose samples all have the same label are left out.

    Args:
      users: integers or strings, `[n]`: whose sample it is. All 64 bits of an
        integer count.
      labels: numbers or booleans, `[n]`: 0 or 1.
      scores: numbers, `[n]`. Only their order within a user matters.
      sample_weight: finite numbers, at least 0, `[n]`; None: 1 each. Samples of
        weight 0 do not count.

    Returns:
      UserMean.

    Raises:
      ValueError: arrays of different lengths or of other values.

    References:
      [Zhou et al., 2018](https://arxiv.org/abs/1706.06978)

    Example:
    >>> tf_ext.metrics.gauc(
    ...     users=["ann", "ann", "bob", "bob", "bob", "eve"],
    ...     labels=[1, 0, 0, 1, 0, 1],
    ...     scores=[0.9, 0.3, 0.5, 0.5, 0.1, 0.7])
    UserMean(value=0.85, users=2, left_out=1)
    """
    users = _ids(users)
    labels = _vector("gauc", "labels", labels, len(users))
    if not np.isin(labels, (0, 1)).all():
        wrong = labels[~np.isin(labels, (0, 1))][0]
        refuse("gauc", "labels", "0 or 1", wrong)
    scores = _vector("gauc", "scores", scores, len(users))
    if np.isnan(scores).any():
        refuse("gauc", "scores", "numbers that are not NaN", np.nan)
    if sample_weight is None:
        weights = np.ones(len(users))
    else:
        weights = _vector("gauc", "sample_weight", sample_weight, len(users))
        weights = weights.astype(np.float64)
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
        if len(wrong):
            refuse("gauc", "sample_weight", "finite, at least 0", wrong[0])
        counts = weights > 0
        users, labels, scores, weights = (
            values[counts] for values in (users, labels, scores, weights)
        )
    return _gauc(users, labels, scores, weights)


def _gauc(
    users: npt.NDArray[typing.Any],
    labels: npt.NDArray[typing.Any],
    scores: npt.NDArray[typing.Any],
    weights: npt.NDArray[np.float64],
) -> UserMean:
    if not len(users):
        return UserMean(float("nan"), 0, 0)
    user = np.unique(users, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((scores, user))
    user, scores, weights = user[order], scores[order], weights[order]
    positive = np.where(labels[order] == 1, weights, 0.0)
    negative = weights - positive
    # Samples of one user and one score are tied.
    new = np.ones(len(user), bool)
    new[1:] = (user[1:] != user[:-1]) | (scores[1:] != scores[:-1])
    ties = np.flatnonzero(new)
    user_of_tie = user[ties]
    positive, negative = (
        np.add.reduceat(sums, ties) for sums in (positive, negative)
    )
    starts = np.flatnonzero(np.diff(user_of_tie, prepend=-1) != 0)
    positives, negatives = (
        np.add.reduceat(sums, starts) for sums in (positive, negative)
    )
    # The weight of the user's negatives of lower scores.
    below = np.cumsum(negative) - negative
    below -= below[starts][user_of_tie]
    wins = np.add.reduceat(positive * (below + negative / 2), starts)
    pairs = positives * negatives
    counted = pairs > 0
    impressions = (positives + negatives)[counted]
    found = int(counted.sum())
    if not found:
        return UserMean(float("nan"), 0, len(pairs))
    value = np.average(wins[counted] / pairs[counted], weights=impressions)
    return UserMean(float(value), found, len(pairs) - found)


def recall_at_k(
    labels: npt.ArrayLike, scores: npt.ArrayLike, k: int
) -> UserMean:
    """The mean over users of the share of their items among the k best.

    `|items of the user among the k best| / |items of the user|`. If scores are
    equal, it is the mean over all orders of the items that are tied: a model
    that gives all items the same score has a recall of k over their number.

    Args:
      labels: integers, `[users]` or `[users, m]`: the indices of each user's
        items; -1 stands for none, where users have fewer than m. Repeated items
        count once.
      scores: numbers, `[users, items]`, of all items. To leave out an item, as
        one that the user has seen, give it a score of `-inf`: it is never
        among the best.
      k: int, at least 1.

    Returns:
      UserMean; users without an item are left out.

    Raises:
      ValueError: other shapes or values.

    Example:
    >>> scores = [[0.1, 0.9, 0.3], [0.2, 0.8, 0.4]]
    >>> tf_ext.metrics.recall_at_k([1, 2], scores, k=1)
    UserMean(value=0.5, users=2, left_out=0)
    """
    items, ranks = _ranked("recall_at_k", labels, scores)
    return recall_of_ranks(items, ranks, k)


def ndcg_at_k(labels: npt.ArrayLike, scores: npt.ArrayLike, k: int) -> UserMean:
    """The mean over users of the normalized discounted cumulative gain.

    An item of the user at rank r, from 1, has the gain `1 / log2(r + 1)` if
    `r <= k`. The sum is divided by the largest possible one. If scores are
    equal, it is the mean over all orders of the items that are tied, as in
    scikit-learn's `ndcg_score`.

    Args:
      labels: as of `recall_at_k`.
      scores: as of `recall_at_k`.
      k: int, at least 1.

    Returns:
      UserMean; users without an item are left out.

    Raises:
      ValueError: other shapes or values.

    Example:
    >>> scores = [[0.1, 0.9, 0.3], [0.2, 0.8, 0.4]]
    >>> tf_ext.metrics.ndcg_at_k([1, -1], scores, k=2)
    UserMean(value=1.0, users=1, left_out=1)
    """
    items, ranks = _ranked("ndcg_at_k", labels, scores)
    return ndcg_of_ranks(items, ranks, k)


def recall_of_ranks(
    items: npt.NDArray[np.bool_], ranks: npt.NDArray[np.int64], k: int
) -> UserMean:
    """As `recall_at_k`.

    Args:
      items: bool `[users, m]`, which labels are items, each of a user once.
      ranks: int64 `[users, m, 2]`: how many items have a higher score, and how
        many the same; 0 for one that is never among the best.
      k: int.
    """
    check_count("recall_at_k", "k", k, 1)
    above, tied = ranks[..., 0], ranks[..., 1]
    hits = np.clip((min(k, _MOST) - above) / np.maximum(tied, 1), 0.0, 1.0)
    hits[~items | (tied == 0)] = 0.0
    return _mean(hits.sum(1), items.sum(1))


def ndcg_of_ranks(
    items: npt.NDArray[np.bool_], ranks: npt.NDArray[np.int64], k: int
) -> UserMean:
    """As `ndcg_at_k`, with the arguments of `recall_of_ranks`."""
    check_count("ndcg_at_k", "k", k, 1)
    above, tied = ranks[..., 0], ranks[..., 1]
    last = int(min(k, max((above + tied).max(initial=0), items.shape[1])))
    gains = 1.0 / np.log2(np.arange(last) + 2.0)
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    first, end = np.minimum(above, last), np.minimum(above + tied, last)
    gained = (sums[end] - sums[first]) / np.maximum(tied, 1)
    gained[~items] = 0.0
    return _mean(gained.sum(1), sums[np.minimum(items.sum(1), last)])


def _mean(
    found: npt.NDArray[np.float64], possible: npt.NDArray[typing.Any]
) -> UserMean:
    counted = possible > 0
    users = int(counted.sum())
    value = (
        float(np.mean(found[counted] / possible[counted]))
        if users
        else float("nan")
    )
    return UserMean(value, users, len(found) - users)


def distinct_items(labels: npt.NDArray[typing.Any]) -> npt.NDArray[np.bool_]:
    """Which of the labels `[users, m]` are items, each of a user once."""
    order = np.argsort(labels, 1, kind="stable")
    ordered = np.take_along_axis(labels, order, 1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    distinct = np.empty_like(first)
    np.put_along_axis(distinct, order, first & (ordered >= 0), 1)
    return distinct


def _ranked(
    owner: str, labels: npt.ArrayLike, scores: npt.ArrayLike
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The arguments of `recall_of_ranks`."""
    labels, scores = np.asarray(labels), np.asarray(scores)
    if scores.ndim != 2 or scores.dtype.kind not in "fiu":
        found = f"{scores.dtype} of shape {scores.shape}"
        refuse(owner, "scores", "numbers, [users, items]", found)
    if labels.ndim == 1:
        labels = labels[:, np.newaxis]
    if (
        labels.ndim != 2
        or len(labels) != len(scores)
        or labels.dtype.kind not in "iu"
    ):
        found = f"{labels.dtype} of shape {labels.shape}"
        allowed = f"integers, [{len(scores)}] or [{len(scores)}, m]"
        refuse(owner, "labels", allowed, found)
    check_items(owner, labels, scores.shape[1])
    labels = labels.astype(np.int64)
    if np.isnan(scores).any():
        refuse(owner, "scores", "numbers that are not NaN", np.nan)
    ranks = np.empty([*labels.shape, 2], np.int64)
    rows = max(1, _BLOCK // max(1, scores.shape[1]))
    for begin in range(0, len(scores), rows):
        part = slice(begin, begin + rows)
        _rank(scores[part], labels[part], ranks[part])
    return distinct_items(labels), ranks


def check_items(
    owner: str, labels: npt.NDArray[typing.Any], num_items: int
) -> None:
    """Raises ValueError for labels that are no items, nor -1."""
    wrong = labels[(labels < -1) | (labels >= num_items)]
    if len(wrong):
        allowed = f"-1 or the index of one of {num_items} items"
        refuse(owner, "labels", allowed, int(wrong[0]))


def _rank(
    scores: npt.NDArray[typing.Any],
    labels: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
) -> None:
    """Writes how many items have a higher score than each label's, or equal."""
    if not scores.shape[1]:
        return  # No label can be an item.
    for column, of_user in enumerate(labels.T):
        # What stands for none is no item, whatever its rank is.
        score = np.take_along_axis(scores, of_user[:, np.newaxis], 1)
        ranks[:, column, 0] = np.count_nonzero(scores > score, axis=1)
        ranks[:, column, 1] = np.count_nonzero(scores == score, axis=1)
        if score.dtype.kind == "f":
            ranks[np.isneginf(score[:, 0]), column, 1] = 0


def _ids(users: npt.ArrayLike) -> npt.NDArray[typing.Any]:
    """The array of users; sorting must not merge or mix them."""
    users = np.asarray(users)
    if users.ndim == 2 and users.shape[1] == 1:
        users = users[:, 0]
    allowed = "integers or strings, [n]"
    if users.ndim != 1:
        refuse("gauc", "users", allowed, f"an array of shape {users.shape}")
    kinds = {type(user) for user in users} if users.dtype == object else set()
    if len(kinds) > 1 or kinds - {str, bytes, int}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        refuse("gauc", "users", allowed, f"objects of {names}")
    if users.dtype.kind not in "iuSUO" and len(users):
        refuse("gauc", "users", allowed, f"an array of {users.dtype}")
    return users


def _vector(
    owner: str, argument: str, values: npt.ArrayLike, size: int
) -> npt.NDArray[typing.Any]:
    """The values as `[n]`, checked."""
    values = np.asarray(values)
    if values.shape == (size, 1):
        values = values[:, 0]
    if values.shape != (size,) or values.dtype.kind not in "biuf":
        found = f"{values.dtype} of shape {values.shape}"
        refuse(owner, argument, f"numbers, [{size}], one for each user", found)
    return values
