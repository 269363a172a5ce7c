# SPDX-License-Identifier: Apache-2.0
"""What the texts of TensorFlow's errors say, and how to take it off."""

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext._compat import cluster_errors, clusters, op_errors
from tf_ext.ops.exchange import exchange_ops

_TEXT = "Something is wrong: 3 is not 4."


def _eager(text):
    exchange_ops.raise_error(tf.constant(text))


@tf.function
def _graph(text):
    with tf.control_dependencies([exchange_ops.raise_error(text)]):
        return tf.identity(text)


class OwnWordsTest(parameterized.TestCase):
    @parameterized.named_parameters(("eager", _eager), ("graph", _graph))
    def test_what_tensorflow_adds_is_taken_off(self, call):
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            call(tf.constant(_TEXT))
        self.assertNotEqual(caught.exception.message, _TEXT)
        self.assertEqual(op_errors.own_words(caught.exception.message), _TEXT)

    @parameterized.named_parameters(("eager", _eager), ("graph", _graph))
    def test_errors_consist_of_their_sentence(self, call):
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            with op_errors.in_own_words(lambda text: f"{text} Really."):
                call(tf.constant(_TEXT))
        self.assertEqual(caught.exception.message, f"{_TEXT} Really.")

    @parameterized.parameters(
        "",
        "Graph execution error:\n\n",
        "Graph execution error:\n\nDetected at node a/Assert defined at (most "
        "recent call last):\n<stack traces unavailable>\n",
        "Graph execution error:\n\nDetected at node a defined at (most recent "
        'call last):\n  File "a.py", line 1, in <module>\n\n  File "b.py", '
        "line 2, in f\n\nDetected at node b defined at (most recent call "
        'last):\n  File "a.py", line 1, in <module>\n\n  File "c.py", '
        "line 3, in g\n\n",
    )
    def test_errors_within_a_dataset(self, before):
        function = (
            "Error in user-defined function passed to ParallelMapDatasetV2:4 "
            "transformation with iterator: Iterator::Root::ParallelMapV2: "
        )
        after = "\n\t [[{{node a}}]]\n\t [[IteratorGetNext]] [Op:__inference_1]"
        for text in (_TEXT, f"assertion failed: [{_TEXT}]"):
            message = before + function + text + after
            self.assertEqual(op_errors.own_words(message), _TEXT)

    def test_shapes_that_are_refused_as_a_graph_is_traced(self):
        def refused():
            exchange_ops.raise_error(tf.constant([_TEXT]))

        for autograph, words in (
            (False, r"^error must be a scalar, but its shape is \[1\]\.$"),
            # What AutoGraph has added stays as it is.
            (True, r"(?s)^in user code:.* with input shapes: \[1\]"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                with op_errors.in_own_words():
                    tf.function(refused, autograph=autograph)()

    def test_errors_of_other_ops_stay_as_they_are(self):
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            with op_errors.in_own_words():
                tf.constant([1, 2]) + tf.constant([1, 2, 3])
        self.assertIn("AddV2", caught.exception.message)


class ClusterErrorsTest(absltest.TestCase):
    def test_of_a_restarted_server(self):
        self.assertTrue(
            cluster_errors.is_of_restarted_server(
                "Unable to find the relevant tensor remote_handle: Op ID: 1"
            )
        )
        self.assertFalse(cluster_errors.is_of_restarted_server(_TEXT))

    def test_of_the_leader(self):
        self.assertTrue(
            cluster_errors.is_of_leader(
                "RPC: /tensorflow.CoordinationService/PollForError"
            )
        )
        self.assertFalse(cluster_errors.is_of_leader(_TEXT))

    def test_of_a_restarted_leader(self):
        text = "a task must be registered before sending heartbeat messages."
        self.assertTrue(cluster_errors.is_of_restarted_leader(text))
        self.assertTrue(cluster_errors.is_of_leader(text))
        self.assertFalse(cluster_errors.is_of_restarted_leader(_TEXT))

    def test_of_workers(self):
        text = "There was an error from /job:worker/replica:0/task:1/device:CPU"
        self.assertEqual(cluster_errors.workers_in(text), [("worker", 1)])

    def test_of_steps(self):
        class WrappedError(RuntimeError):
            original_exception = ValueError(_TEXT)

        self.assertIsInstance(
            clusters.error_of_step(WrappedError()), ValueError
        )
        error = ValueError(_TEXT)
        self.assertIs(clusters.error_of_step(error), error)

    def test_addresses_of_both_kinds_of_sockets(self):
        for name in (("10.0.0.1", 7), ("::ffff:10.0.0.1", 7, 0, 0)):
            self.assertEqual(clusters.plain_address(name), ("10.0.0.1", 7))


if __name__ == "__main__":
    absltest.main()
