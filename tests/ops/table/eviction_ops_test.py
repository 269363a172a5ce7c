# SPDX-License-Identifier: Apache-2.0
"""The ops that evict rows and let their statistics decay."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    FLOAT64,
    MODES,
    RefusalTestCase,
    export_all,
    table_config,
)

from tf_ext import ops

_FIELDS = ("weights", "last_seen", "show", "click")
_TYPES = (tf.float32, tf.int32, tf.float32, tf.float32)
_SGD = (1.0, 0.0)


def _push(handle, statistics, signs=(1, 2)):
    return ops.sparse_table_push(
        handle,
        signs,
        tf.ones([len(signs), 4]),
        statistics,
        hyperparameters=_SGD,
        step=1,
    )


class LifetimeOpsTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.handle = ops.sparse_table_handle(
            table_config(last_seen="step", statistics="show,click")
        )
        _push(self.handle, [[3.0, 1.0], [1.0, 0.5]])
        self.before = export_all(self.handle, _FIELDS, _TYPES)

    def assert_unchanged(self):
        signs, values = export_all(self.handle, _FIELDS, _TYPES)
        self.assertAllEqual(signs, self.before[0])
        for found, expected in zip(values, self.before[1], strict=True):
            self.assertAllEqual(found, expected)

    def _statistics(self):
        _, (show, click) = export_all(self.handle, _FIELDS[2:], _TYPES[2:])
        return np.concatenate([show, click], 1)

    @parameterized.named_parameters(*MODES)
    def test_push_adds_statistics(self, mode):
        mode(lambda: _push(self.handle, [[1.0, 0.25], [0.0, 0.0]]))()
        self.assertAllEqual(self._statistics(), [[4, 1.25], [1, 0.5]])
        mode(lambda: _push(self.handle, None, (1, 2, 2)))()
        self.assertAllEqual(self._statistics(), [[5, 1.25], [3, 0.5]])
        # No column is no statistics, too.
        mode(lambda: _push(self.handle, tf.zeros([2, 0])))()
        self.assertAllEqual(self._statistics(), [[6, 1.25], [4, 0.5]])

    @parameterized.named_parameters(*MODES)
    def test_decay(self, mode):
        decay = mode(lambda: ops.sparse_table_decay(self.handle, 0.5))
        self.assertEqual(decay(), 2)
        self.assertAllEqual(self._statistics(), [[1.5, 0.5], [0.5, 0.25]])

    @parameterized.named_parameters(*MODES)
    def test_evict_by_statistics(self, mode):
        # 3 + 2 * 1 of sign 1, and 1 + 2 * 0.5 of sign 2.
        for limits, evicted in (
            ({"score": [2.0, 1.0, 2.0]}, 0),
            ({"score": [9.0, 1.0, 2.0], "unseen": 1, "require_all": True}, 0),
            ({"score": [2.5, 1.0, 2.0]}, 1),
            ({"score": [5.0, 1.0, 2.0]}, 0),
            ({"capacity": 1, "by_show": True, "policy": "capacity"}, 0),
            ({"capacity": 0, "by_show": True}, 1),
        ):
            found = mode(
                lambda limits=limits: ops.sparse_table_evict(
                    self.handle, 1, **limits
                )
            )()
            self.assertEqual(found.evicted, evicted, limits)

    @parameterized.named_parameters(
        (
            "push_negative_statistics",
            lambda h: _push(h, [[1.0, 0.0], [-1.0, 0.0]]),
            "statistics[1, 0] of sign 2 is -1",
        ),
        (
            "push_nan",
            lambda h: _push(h, [[1.0, np.nan], [1.0, 0.0]]),
            "statistics[0, 1] of sign 1 is nan",
        ),
        (
            "push_infinity",
            lambda h: _push(h, [[1.0, 0.0], [np.inf, 0.0]]),
            "statistics[1, 0] of sign 2 is inf",
        ),
        (
            "push_too_few_columns",
            lambda h: _push(h, [[1.0], [1.0]]),
            "statistics has 1 columns",
            "it must have 2",
        ),
        (
            "push_too_many_columns",
            lambda h: _push(h, tf.ones([2, 3])),
            "statistics has 3 columns",
        ),
        (
            "decay_0",
            lambda h: ops.sparse_table_decay(h, 0.0),
            "factor is 0; it must be above 0 and at most 1.",
        ),
        (
            "decay_nan",
            lambda h: ops.sparse_table_decay(h, np.nan),
            "factor is nan",
        ),
        (
            "decay_of_rank_1",
            lambda h: ops.sparse_table_decay(h, [0.5]),
            "factor must be a scalar",
        ),
        (
            "decay_float32",
            lambda h: ops.sparse_table_decay(h, tf.constant(0.5)),
            FLOAT64,
        ),
        (
            "evict_score_of_2",
            lambda h: ops.sparse_table_evict(h, 9, score=[1.0, 1.0]),
            "score must be of shape [0] or [3]",
            "its shape is [2]",
        ),
        (
            "evict_score_of_rank_0",
            lambda h: ops.sparse_table_evict(h, 9, score=1.0),
            "score must be a vector",
        ),
        (
            "evict_score_nan",
            lambda h: ops.sparse_table_evict(h, 9, score=[np.nan, 1, 0]),
            "score has the value nan",
        ),
        (
            "evict_score_and_capacity",
            lambda h: ops.sparse_table_evict(
                h, 9, capacity=1, score=[1.0, 1.0, 0.0]
            ),
            "capacity is 1, and there is a score",
        ),
        (
            "evict_nothing",
            lambda h: ops.sparse_table_evict(h, 9),
            "unseen is 0 and capacity is -1",
        ),
        (
            "evict_by_an_unknown_policy",
            lambda h: ops.sparse_table_evict(h, 9, unseen=1, policy="age"),
            'policy is "age"',
            "it must be empty or one of unseen, capacity, score.",
        ),
        (
            "evict_unseen_by_name",
            lambda h: ops.sparse_table_evict(h, 9, policy="unseen"),
            "unseen is 0; it must be at least 1.",
        ),
        (
            "evict_capacity_by_name",
            lambda h: ops.sparse_table_evict(h, 9, policy="capacity"),
            "capacity is -1; it must be at least 0.",
        ),
        (
            "evict_score_by_name",
            lambda h: ops.sparse_table_evict(
                h, 9, unseen=-1, score=[1.0, 1.0, 0.0], policy="score"
            ),
            "unseen is -1; it must be at least 0.",
        ),
        (
            "evict_by_show_of_rank_1",
            lambda h: ops.sparse_table_evict(h, 9, capacity=1, by_show=[True]),
            "by_show must be a scalar",
        ),
        (
            "evict_require_all_of_rank_1",
            lambda h: ops.sparse_table_evict(
                h, 9, unseen=1, require_all=[True]
            ),
            "require_all must be a scalar",
        ),
    )
    def test_refuses(self, call, *texts):
        self.assert_refused(lambda: call(self.handle), *texts)

    def test_refuses_tables_without_the_fields(self):
        handle = ops.sparse_table_handle(table_config())
        for call, text in (
            (
                lambda: ops.sparse_table_decay(handle, 0.5),
                "has no statistics that could decay",
            ),
            (
                lambda: ops.sparse_table_evict(
                    handle, 1, capacity=1, by_show=True
                ),
                "does not hold the show of its rows",
            ),
        ):
            self.assert_refused(call, text)

    @parameterized.named_parameters(*MODES)
    def test_empty_push(self, mode):
        for statistics in (tf.zeros([0, 0]), tf.zeros([0, 2]), None):
            push = mode(
                lambda statistics=statistics: ops.sparse_table_push(
                    self.handle,
                    tf.zeros([0], tf.int64),
                    tf.zeros([0, 4]),
                    statistics,
                    hyperparameters=_SGD,
                )
            )
            self.assertEqual(push(), 0)
            self.assert_unchanged()


if __name__ == "__main__":
    tf.test.main()
