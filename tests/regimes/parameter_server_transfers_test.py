# SPDX-License-Identifier: Apache-2.0
"""How many messages a step takes, and what arrives in them."""

import glob
import graphlib
import os
import re
import shutil
import tempfile
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from google.protobuf import text_format
from models.model_building import id_column

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops.passes.bundle_ops import bundle_transfers, next_stage

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_CLUSTER = util.Cluster()
_FOLDER = None
_COLUMNS = 6


def setUpModule():
    global _FOLDER
    _FOLDER = tempfile.mkdtemp()
    # Each task writes the graphs that it is given there.
    dumps = {"TF_DUMP_GRAPH_PREFIX": _FOLDER, "TF_DUMP_GRAPH_NAME_FILTER": "*"}
    with unittest.mock.patch.dict(os.environ, dumps):
        _CLUSTER.start(workers=1, ps=2)


def tearDownModule():
    _CLUSTER.stop()
    shutil.rmtree(_FOLDER)


def _graphs(name):
    """What tasks run in a call of a function: `{task: tf.compat.v1.GraphDef}`.

    Args:
      name: string, of the only function of this name since the last call.
    """
    graphs = {}
    for path in glob.glob(f"{_FOLDER}/*.after_partition_passes.*"):
        found = re.fullmatch(
            rf"__inference_{name}_\d+_partition__"
            r"job:(\w+)_replica:0_task:(\d+)_device:CPU:0\..*",
            os.path.basename(path),
        )
        if found:
            with open(path) as file:
                graphs["{}{}".format(*found.groups())] = text_format.Parse(
                    file.read(), tf.compat.v1.GraphDef()
                )
    for path in glob.glob(f"{_FOLDER}/*"):
        os.remove(path)
    return graphs


def _name_of_tensor(node, *ops):
    """What a node sends or receives, bytes; None unless it is of `ops`."""
    return node.attr["tensor_name"].s if node.op in ops else None


def _received(node):
    return _name_of_tensor(node, "_Recv", "_HostRecv")


def _messages(graphs):
    """What each task receives: `{task: [tensors]}`, of `_graphs`."""
    return {
        task: [name for name in map(_received, graph.node) if name]
        for task, graph in graphs.items()
    }


def _number_of(graphs, op):
    """How many nodes of a type each task has, of `_graphs`."""
    return {
        task: sum(node.op == op for node in graph.node)
        for task, graph in graphs.items()
    }


def _messages_between(graphs, op):
    """The most messages on a way that has the most nodes of a type.

    Args:
      graphs: as of `_graphs`.
      op: string, the nodes' type.

    Returns:
      `(nodes, messages)`.
    """
    nodes = {(task, n.name): n for task, g in graphs.items() for n in g.node}
    senders = {
        _name_of_tensor(node, "_Send", "_HostSend"): key
        for key, node in nodes.items()
    }

    def before(key):
        node = nodes[key]
        names = {i.removeprefix("^").split(":")[0] for i in node.input}
        keys = [(key[0], name) for name in names]
        return [*keys, senders[_received(node)]] if _received(node) else keys

    longest = {}
    for key in graphlib.TopologicalSorter(
        {key: before(key) for key in nodes}
    ).static_order():
        computed, messages = max(
            (longest[k] for k in before(key)), default=(0, 0)
        )
        longest[key] = (
            computed + (nodes[key].op == op),
            messages + (_received(nodes[key]) is not None),
        )
    return max(longest.values())


def _values(seed):
    """Tensors of several shapes and types, the last one of strings."""
    uniform = tf.random.stateless_uniform
    return [
        uniform([3, 5], seed),
        uniform([], seed, 0, 9, tf.int64),
        uniform([2], seed) > 0.5,
        uniform([0, 3], seed),
        tf.cast(uniform([7], seed), tf.bfloat16),
        tf.strings.as_string(seed),
    ]


class StepsTest(tf.test.TestCase):
    def _graphs_of_steps(self, tables, dim=4, steps=1, overlap=False):
        data = {f"c{i}": np.arange(64) * (i + 1) % 50 for i in range(_COLUMNS)}
        labels = (np.arange(64) % 2).astype(np.float32)
        dataset = tf.data.Dataset.from_tensor_slices((data, labels)).batch(8)
        with _CLUSTER.strategy.scope():
            columns = [id_column(name) for name in data]
            embedded = tf_ext.layers.EmbeddingFeatures(
                {
                    tf_ext.SparseTable(f"t{i}", dim): columns[i::tables]
                    for i in range(tables)
                }
            )
            inputs = {
                name: keras.Input((), dtype="int64", name=name) for name in data
            }
            hidden = keras.layers.Concatenate()(
                [
                    *embedded(inputs).values(),
                    keras.layers.Rescaling(1.0)(
                        tf_ext.layers.EmbeddingFeatures(
                            columns[:1], tf_ext.SparseTable("wide", 1)
                        )(inputs)
                    ),
                ]
            )
            for units in (8, 4, 1):
                hidden = keras.layers.Dense(units, "sigmoid")(hidden)
            model = util.compiled(
                tf_ext.Model(inputs, hidden),
                metrics=["AUC", "accuracy"],
                steps_per_execution=steps,
            )
        _graphs("")
        model.fit(dataset, overlap_steps=overlap, verbose=0)
        many = "_run_overlapped" if overlap else "_run_whole"
        return _graphs("_run_one" if steps == 1 else many)

    def test_messages_do_not_depend_on_the_number_of_tables(self):
        counts = []
        # Variables are on the servers in turn, and which of them an optimizer
        # needs first depends on their number: so tasks may change places.
        for tables in (2, 6):
            graphs = self._graphs_of_steps(tables)
            messages = _messages(graphs)
            self.assertCountEqual(messages, ["worker0", "ps0", "ps1"])
            # Two layers pull, and all of their tables are pushed together.
            for op, count in (("Pull", 2), ("Push", 1)):
                self.assertEqual(
                    _number_of(graphs, f"TfExt>SparseTables{op}"),
                    {"worker0": 0, "ps0": count, "ps1": count},
                )
            counts.append(sorted(map(len, messages.values())))
        self.assertEqual(counts[0], counts[1])
        # One by one, they would be more than 50.
        self.assertLessEqual(sum(counts[0]), 16)

    def test_the_steps_of_an_execution_take_fewer(self):
        one = _messages(self._graphs_of_steps(2))
        four = _messages(self._graphs_of_steps(2, steps=4))
        self.assertCountEqual(four, one)
        self.assertLess(
            sum(map(len, four.values())), 4 * sum(map(len, one.values()))
        )

    def test_steps_that_overlap_compute_without_waiting_for_updates(self):
        def messages(steps, overlap):
            computed, messages = _messages_between(
                self._graphs_of_steps(2, steps=steps, overlap=overlap),
                "TfExt>CombineBagsGrad",
            )
            self.assertGreaterEqual(computed, steps)
            return messages

        # Ids and rows of the first step, and the update of the last one, which
        # in tf_keras reads its learning rate from a server first.
        counts = [messages(steps, True) for steps in (2, 4)]
        self.assertEqual(counts, [4, 4] if IS_KERAS_3 else [5, 5])
        self.assertGreater(messages(4, False), 2 * counts[1])


class BundlesTest(tf.test.TestCase):
    """What bundles hold, by functions whose results are known."""

    def _run(self, function, *arguments):
        _graphs("")
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            _CLUSTER.strategy
        )
        results = coordinator.schedule(
            tf.function(function), args=arguments
        ).fetch()
        return results, _messages(_graphs(function.__name__))

    def test_values_of_all_kinds(self):
        def kinds(seed):
            bundle_transfers()
            with tf.device("/job:ps/task:0"):
                sent = _values(seed)
            with tf.device("/job:worker/task:0"):
                return [*map(tf.identity, sent[:-1]), sent[-1] + "!"]

        seed = tf.constant([1, 2])
        found, messages = self._run(kinds, seed)
        wanted = _values(seed)
        wanted[-1] += "!"
        for value, expected in zip(found, wanted, strict=True):
            self.assertEqual(value.dtype, expected.dtype)
            self.assertEqual(value.shape, expected.shape)
            self.assertAllEqual(value, expected)
        # Strings are by themselves.
        self.assertLen(messages["worker0"], 2)

    def test_answers_to_answers_and_several_receivers(self):
        def ping_pong(value):
            bundle_transfers()
            for _ in range(3):
                parts = []
                for task in range(2):
                    with tf.device(f"/job:ps/task:{task}"):
                        total = tf.reduce_sum(value)
                        parts += [value + task, 2 * value, value * total]
                with tf.device("/job:worker/task:0"):
                    value = tf.add_n(parts)
            return value

        found, messages = self._run(ping_pong, tf.constant([1.0, 2.0]))
        expected = np.array([1.0, 2.0])
        for _ in range(3):
            expected = 6 * expected + 1 + 2 * expected * expected.sum()
        self.assertAllClose(found, expected)
        self.assertLen(messages["worker0"], 6)
        for task in ("ps0", "ps1"):
            self.assertLen(messages[task], 3)

    def test_stages_that_are_kept_apart(self):
        def together(value, apart=lambda values: values):
            bundle_transfers()
            with tf.device("/job:worker/task:0"):
                first = value * 2
                with tf.control_dependencies([first]):
                    [later] = apart([value])
                second = later * 3
            with tf.device("/job:ps/task:0"):
                first, second = first + 1, second + 1
            with tf.device("/job:worker/task:0"):
                return first + second

        def kept_apart(value):
            return together(value, next_stage)

        for function, count in ((together, 1), (kept_apart, 2)):
            found, messages = self._run(function, tf.constant([1.0, 2.0]))
            self.assertAllEqual(found, [7.0, 12.0])
            self.assertLen(messages["ps0"], count)
            self.assertLen(messages["worker0"], 1)

    def test_branches_and_loops(self):
        def control_flow(count):
            bundle_transfers()

            def on_server(value):
                with tf.device("/job:ps/task:0"):
                    return value + 1, value * 2, -value

            total = tf.cond(
                count > 2,
                lambda: tf.add_n(on_server(count)),
                lambda: tf.add_n(on_server(10 * count)),
            )
            index, total = tf.while_loop(
                lambda index, total: index < count,
                lambda index, total: (
                    index + 1,
                    total + tf.add_n(on_server(index)),
                ),
                (0, total),
            )
            one, two, three = on_server(total + index)
            return one + two + three

        for count in (0, 1, 5):
            total = 2 * (count if count > 2 else 10 * count) + 1
            total += sum(2 * index + 1 for index in range(count))
            found, _ = self._run(control_flow, tf.constant(count))
            self.assertEqual(int(found), 2 * (total + count) + 1)

    def test_order_of_updates(self):
        with _CLUSTER.strategy.scope():
            variables = [tf.Variable(float(i)) for i in range(4)]

        def updates(value):
            bundle_transfers()
            for factor in (2.0, 3.0):
                sums = [tf.identity(v) + value for v in variables]
                for variable, one in zip(variables, reversed(sums)):
                    variable.assign(factor * one)
            return tf.stack([tf.identity(v) for v in variables])

        found, _ = self._run(updates, tf.constant(1.0))
        expected = np.arange(4.0)
        for factor in (2.0, 3.0):
            expected = factor * (expected[::-1] + 1)
        self.assertAllEqual(found, expected)
        self.assertAllEqual([v.numpy() for v in variables], expected)

    def test_order_without_values(self):
        def order(value):
            bundle_transfers()
            with tf.device("/job:ps/task:0"):
                slow = value
                for _ in range(8):
                    slow = tf.linalg.matmul(slow, value)
                with tf.control_dependencies([slow]):
                    before = tf.timestamp()
                first, second = value[0] + 1, value[1] + 1
            with tf.device("/job:worker/task:0"):
                with tf.control_dependencies([before]):
                    after = tf.timestamp()
                return first + second, before - after

        (_, difference), _ = self._run(order, tf.eye(700))
        self.assertLess(float(difference), 0.0)

    def test_without_the_mark_tensors_are_sent_one_by_one(self):
        def unmarked(value):
            with tf.device("/job:ps/task:0"):
                parts = [value + 1, value + 2, value + 3]
            return tf.add_n(parts)

        found, messages = self._run(unmarked, tf.constant(1.0))
        self.assertEqual(float(found), 9.0)
        self.assertLen(messages["worker0"], 3)


if __name__ == "__main__":
    tf.test.main()
