# SPDX-License-Identifier: Apache-2.0
"""The order of the collectives of a step, and of errors that all raise."""

import tensorflow as tf
from absl.testing import parameterized

from tf_ext.distribute.collectives import Collectives

_MAKERS = {
    "gather": lambda workers, v: workers.gather(v),
    "words": lambda workers, v: workers.gather_words(tf.cast(v, tf.int32)),
    "sum": lambda workers, v: workers.sum([tf.zeros([1 << 20], tf.int64) + v])[
        0
    ],
    "all_to_all": lambda workers, v: workers.all_to_all(
        lambda width: tf.fill([2, width], v[0]), tf.int64, v[0]
    ),
}


def _before(operation):
    """All operations for which one waits."""
    found, left = set(), [operation]
    while left:
        one = left.pop()
        its = {*one.control_inputs, *(tensor.op for tensor in one.inputs)}
        left += its - found
        found |= its
    return found


class OrderTest(parameterized.TestCase):
    @parameterized.named_parameters((name, name) for name in _MAKERS)
    def test_errors_are_raised_while_none_is_under_way(self, name):
        workers = Collectives(2, 0, "/device:CPU:0")
        make = _MAKERS[name]

        @tf.function(input_signature=[tf.TensorSpec([1], tf.int64)])
        def step(values):
            before = make(workers, values)
            error = tf.strings.as_string(values[0])
            workers.raise_error(error)
            after = make(workers, values)
            return before, after

        operations = step.get_concrete_function().graph.get_operations()
        [error] = [o for o in operations if o.type == "TfExt>RaiseError"]
        before, after = [o for o in operations if o.type[:10] == "Collective"]
        self.assertIn(before, _before(error))
        self.assertIn(error, _before(after))

    def test_an_error_waits_for_several_and_they_not_for_each_other(self):
        workers = Collectives(2, 0, "/device:CPU:0")

        @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
        def step(values):
            workers.gather(values)
            workers.gather(values[:1])
            workers.raise_error(tf.strings.as_string(values[0]))

        operations = step.get_concrete_function().graph.get_operations()
        [error] = [o for o in operations if o.type == "TfExt>RaiseError"]
        gathers = [o for o in operations if o.type[:10] == "Collective"]
        self.assertLen(gathers, 2)
        self.assertContainsSubset(gathers, _before(error))
        for one in gathers:
            self.assertEmpty(_before(one) & {error, *gathers})


if __name__ == "__main__":
    tf.test.main()
