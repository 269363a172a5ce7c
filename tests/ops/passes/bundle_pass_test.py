# SPDX-License-Identifier: Apache-2.0
"""What travels together between two tasks, which are servers of this process.

The graphs that the tasks run are those of a session, which returns them.
"""

import collections
import functools

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.distribute import ports
from tf_ext.ops.passes.bundle_ops import bundle_transfers, next_stage

# Servers live as long as their process.
pytestmark = pytest.mark.process

_ONE, _TWO = (f"/job:worker/task:{i}/device:CPU:0" for i in range(2))


@functools.cache
def _servers():
    addresses = [f"127.0.0.1:{port}" for port in ports.free_ports(2)]
    cluster = tf.train.ClusterSpec({"worker": addresses})
    return [
        tf.distribute.Server(cluster, job_name="worker", task_index=index)
        for index in range(2)
    ]


def _run(make, bundles=True):
    """What a function's graph gives, and the operations of both tasks."""
    with tf.Graph().as_default() as graph:
        if bundles:
            bundled = bundle_transfers()
        with tf.device(_ONE):
            fetched = make()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        data = tf.compat.v1.RunMetadata()
        config = tf.compat.v1.ConfigProto()
        rewriting = config.graph_options.rewrite_options
        rewriting.disable_meta_optimizer = True
        with tf.compat.v1.Session(
            _servers()[0].target, graph=graph, config=config
        ) as session:
            wanted = [fetched, bundled] if bundles else [fetched]
            found = session.run(wanted, None, options, data)[0]
    nodes = [node for part in data.partition_graphs for node in part.node]
    return found, nodes


def _sent(nodes):
    """How many tensors each task sends to the other one."""
    return collections.Counter(
        int("task:1" in node.device)
        for node in nodes
        if node.op in ("_Send", "_HostSend")
        and node.attr["send_device"].s != node.attr["recv_device"].s
        and not node.attr["client_terminated"].b
    )


def _bundles(nodes):
    return sorted(
        [tf.as_dtype(one).name for one in node.attr["T"].list.type]
        for node in nodes
        if node.op == "TfExt>Bundle"
    )


def _answers(value):
    """Three numbers that the other task makes of one."""
    with tf.device(_TWO):
        return value + 1, value * 2, tf.cast(value, tf.int64)


class BundlePassTest(tf.test.TestCase, parameterized.TestCase):
    def test_answers_travel_together(self):
        def make():
            value = tf.constant([2.0, 3.0]) + tf.random.uniform([2], 0, 0)
            one, two, three = _answers(value)
            # A tensor of several receivers is sent once.
            return one + two + tf.cast(three, tf.float32) * one

        for bundles, sent in ((True, 1), (False, 3)):
            found, nodes = _run(make, bundles)
            self.assertAllEqual(found, [13.0, 22.0])
            self.assertEqual(_sent(nodes), {0: 1, 1: sent})
            wanted = [["float32", "float32", "int64"]] if bundles else []
            self.assertEqual([sorted(b) for b in _bundles(nodes)], wanted)

    def test_strings_and_a_tensor_alone_are_sent_as_they_are(self):
        def make():
            value = tf.random.uniform([2], 3, 4, tf.int64)
            with tf.device(_TWO):
                text, number = tf.strings.as_string(value), value + 1
            return tf.strings.join([text, tf.strings.as_string(number)])

        found, nodes = _run(make)
        self.assertAllEqual(found, [b"34", b"34"])
        self.assertEqual(_bundles(nodes), [])
        self.assertEqual(_sent(nodes), {0: 1, 1: 2})

    def test_answers_to_answers(self):
        def make():
            value = tf.random.uniform([2], 0, 0)
            for _ in range(3):
                one, two, three = _answers(value)
                value = one + two + tf.cast(three, tf.float32)
            return value

        found, nodes = _run(make)
        self.assertAllEqual(found, [21.0, 21.0])
        self.assertEqual(_sent(nodes), {0: 3, 1: 3})
        self.assertLen(_bundles(nodes), 3)

    def test_what_is_needed_later_waits_for_nothing(self):
        def make():
            value = tf.random.uniform([2], 0, 0)
            one, two, _ = _answers(value)
            again, more, _ = _answers(one + 1)
            # `two` is needed with what the second question brings.
            return again + more + two

        found, nodes = _run(make)
        self.assertAllEqual(found, [7.0, 7.0])
        # A tensor is sent with what its first receiver needs.
        self.assertEqual(_sent(nodes), {0: 2, 1: 2})
        self.assertEqual(_bundles(nodes), [["float32"] * 3])

    @parameterized.parameters(False, True)
    def test_stages_that_are_kept_apart(self, apart):
        def make():
            value = tf.random.uniform([2], 1, 1)
            first = value * 2
            with tf.control_dependencies([first]):
                [later] = next_stage([value]) if apart else [value + 0]
            second = later * 3
            with tf.device(_TWO):
                first, second = first + 1, second + 1
            return first + second

        found, nodes = _run(make)
        self.assertAllEqual(found, [7.0, 7.0])
        # Answers wait for each other: only questions are kept apart.
        self.assertEqual(_sent(nodes)[0], 2 if apart else 1)
        self.assertLen(_bundles(nodes), 1 if apart else 2)

    def test_order_without_values_travels_along(self):
        def make():
            value = tf.random.uniform([2], 1, 1)
            with tf.device(_TWO):
                before = value + 1
                with tf.control_dependencies([before]):
                    done = tf.no_op()
                sent = value * 2
            with tf.control_dependencies([done]):
                own = tf.identity(value, "own")
            return own + sent

        found, nodes = _run(make)
        self.assertAllEqual(found, [3.0, 3.0])
        self.assertEqual(_bundles(nodes), [["float32"]])
        self.assertEqual(_sent(nodes), {0: 1, 1: 1})
        [unbundle] = [n for n in nodes if n.op == "TfExt>Unbundle"]
        [own] = [n for n in nodes if n.name == "own"]
        self.assertIn(f"^{unbundle.name}", own.input)

    def test_what_may_be_dead_is_sent_by_itself(self):
        for taken in (True, False):

            def make(taken=taken):
                value = tf.random.uniform([], 1, 1)
                is_taken = tf.equal(value > 0, taken)
                other, one = tf.raw_ops.Switch(data=value, pred=is_taken)
                with tf.device(_TWO):
                    # Dead in one of the cases, and two of each.
                    found = [one + 1, one * 3, other + 5, other * 7]
                taken_sum, other_sum = found[0] + found[1], found[2] + found[3]
                return tf.raw_ops.Merge(inputs=[taken_sum, other_sum]).output

            found, nodes = _run(make)
            self.assertEqual(float(found), 5.0 if taken else 13.0)
            self.assertEqual(_bundles(nodes), [])

    def test_loops(self):
        tf.compat.v1.disable_control_flow_v2()
        self.addCleanup(tf.compat.v1.enable_control_flow_v2)

        def make():
            start = tf.random.uniform([], 1, 1)
            # What a loop needs of before it is in no loop.
            with tf.device(_TWO):
                step, most = start + 1, start * 9

            def body(value):
                with tf.device(_TWO):
                    one, two = value + 1, value * 2
                return one + two - value + step * 0

            return tf.while_loop(lambda v: v < most, body, [start])

        [found], _ = _run(make)
        self.assertEqual(float(found), 15.0)


if __name__ == "__main__":
    tf.test.main()
