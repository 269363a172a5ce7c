# SPDX-License-Identifier: Apache-2.0
"""Partitions that one worker at a time reads, where a test is all workers."""

import json
import time
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext.data.errors import DamagedFileError
from tf_ext.data.progress import BatchNote
from tf_ext.data.worker_streams import Told
from tf_ext.training.parameter_servers import stream_share
from tf_ext.training.parameter_servers.step_numbers import StepNumbers
from tf_ext.training.parameter_servers.stream_share import StreamShare, Trained

_LOST = tf.errors.UnavailableError(None, None, "lost")


def _told(**positions):
    return Told(BatchNote(positions, 4, 1.0, 2.0, {"a": 4}), [])


def _batch(**positions):
    return tf.constant(json.dumps(["batch", _told(**positions).text()]))


def _says(*what):
    return tf.constant(json.dumps([*what]))


class StreamShareTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.opened, self.asked, self.steps = [], [], []
        # What workers answer, in order.
        self.answers = []
        self.enterContext(
            mock.patch.object(
                stream_share.worker_streams, "open_reading", self._open
            )
        )
        self.share = StreamShare(
            1, "own", b"made", lambda name: [self._name(name)], self._ask
        )
        self.share.add("a", 3)
        self.share.number = StepNumbers().begin

    def _name(self, name):
        return name.numpy().decode()

    def _open(self, name, text, positions, again):
        self.assertEqual(text, b"made")
        self.opened.append((self._name(name), dict(positions), again))

    def _ask(self, name, seconds):
        self.assertEqual(self._name(name), self.opened[-1][0])
        self.asked.append(float(seconds))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ready(self, *answers, worker=1, seconds=0.25):
        self.answers = [*answers]
        found = self.share.is_ready(worker, seconds)
        self.assertEqual(self.answers, [])
        return found

    def run_step(self, following, fails=None):
        """The positions of a step; the worker tells of the next batch."""

        def step(iterator, name, number):
            self.assertEqual(self._name(name), self.opened[-1][0])
            self.assertEqual(next(iterator), self.opened[-1][0])
            self.steps.append(number.numpy().tolist()[0])
            if fails is not None:
                raise fails
            return tf.constant(5.0), following, "loss"

        first, loss, text = self.share.run(step)
        self.assertEqual((first, loss), (5.0, "loss"))
        return Trained.of(text)

    def names(self):
        return [name for name, *_ in self.opened]

    def test_what_was_trained_on_as_text(self):
        one = Trained(7, _told(a=4, b=[1, "x"]))
        self.assertEqual(Trained.of(one.text()), one)

    def test_waits_for_a_batch(self):
        self.assertFalse(self.ready(_says("none")))
        self.assertEqual(self.opened, [(mock.ANY, {"a": 3}, None)])
        self.assertTrue(self.ready(_batch(a=7), seconds=0.5))
        self.assertEqual(self.asked, [0.25, 0.5])
        # It is there until a step takes it.
        self.assertTrue(self.ready())
        self.assertLen(self.opened, 1)
        self.assertFalse(self.share.has_ended)

    def test_steps(self):
        self.ready(_batch(a=7))
        with mock.patch.object(time, "monotonic", return_value=8.5):
            trained = self.run_step(_batch(a=9))
        self.assertEqual(trained, Trained(1, _told(a=7)))
        self.assertEqual(self.share.trained_at, 8.5)
        # The step told of the next batch.
        self.assertTrue(self.ready())
        self.share._iterator = iter(self.names())
        self.assertEqual(self.run_step(_says("none")), Trained(2, _told(a=9)))
        self.assertFalse(self.ready(_says("none")))
        self.assertEqual(self.steps, [0, 1])
        self.assertLen(self.opened, 1)
        # Another reading begins behind what was trained on.
        self.ready(_says("none"), worker=0)
        self.assertEqual(self.opened[1][1:], ({"a": 9}, None))
        self.assertNotEqual(*self.names())

    def test_the_end(self):
        self.assertFalse(self.ready(_says("end")))
        self.assertTrue(self.share.has_ended)
        self.share.go_on()
        self.assertFalse(self.share.has_ended)
        self.assertTrue(self.ready(_batch(a=7)))
        self.assertLen(self.opened, 2)
        self.run_step(_says("end"))
        self.assertTrue(self.share.has_ended)
        # Where there is more, nothing is read anew.
        self.share.has_ended = False
        self.share.go_on()
        self.assertFalse(self.ready(_says("none")))
        self.assertLen(self.opened, 2)

    def test_partitions_that_are_added(self):
        self.assertEqual(self.share.partitions, 1)
        self.ready(_batch(a=7))
        self.share.add("b", 0)
        self.share.add("c", [2, 1])
        self.assertEqual(self.share.partitions, 3)
        self.assertTrue(self.ready(_batch(b=1)))
        self.assertEqual(self.share.partitions, 3)
        self.assertEqual(
            self.opened[1][1:], ({"a": 3, "b": 0, "c": [2, 1]}, None)
        )
        self.assertEqual(self.run_step(_says("none")), Trained(1, _told(b=1)))

    def test_a_reading_that_a_worker_has_forgotten(self):
        self.assertFalse(self.ready(_says("forgotten")))
        self.assertTrue(self.ready(_batch(a=7)))
        self.assertLen(self.opened, 2)
        for forgotten, place in (
            (_says("forgotten"), 8),
            (_says("error", "KeyError"), 9),
        ):
            # It is asked again, and raises then.
            self.run_step(forgotten)
            self.share._iterator = iter([self.opened[-1][0]])
            self.assertTrue(self.ready(_batch(a=place)))
        self.assertLen(self.opened, 2)
        # It was forgotten before a step.
        end = tf.errors.OutOfRangeError(None, None, "")
        self.assertEqual(self.share.run(mock.Mock(side_effect=end)), [])
        self.assertFalse(self.share.is_lost)
        # The step begins once more, of the same batch.
        self.assertTrue(self.share.is_step_lost)
        self.assertTrue(self.ready(_batch(a=99)))
        self.assertEqual(self.opened[2][1:], ({"a": 8}, _told(a=9).note))
        self.assertEqual(self.run_step(_says("none")), Trained(3, _told(a=9)))

    def test_a_lost_worker(self):
        with self.assertRaises(tf.errors.UnavailableError):
            self.ready(_LOST)
        self.assertTrue(self.share.is_lost)
        self.assertFalse(self.share.is_step_lost)
        self.assertTrue(self.ready(_batch(a=7), worker=0))
        self.assertLen(self.opened, 2)
        # Of another worker, any may go on with it.
        self.run_step(_batch(a=8))
        self.assertTrue(self.share.is_lost)
        self.assertTrue(self.ready(_batch(a=9)))
        self.assertEqual(self.opened[2][1:], ({"a": 7}, None))
        self.assertEqual(self.run_step(_says("none")), Trained(2, _told(a=9)))
        self.assertFalse(self.share.is_lost)

    def test_a_lost_step_runs_again(self):
        self.ready(_batch(a=7))
        with self.assertRaises(tf.errors.UnavailableError):
            self.run_step(None, _LOST)
        self.assertTrue(self.share.is_lost)
        self.assertTrue(self.share.is_step_lost)
        # The same batch, whatever is told of it.
        self.assertTrue(self.ready(_batch(a=99), worker=0))
        self.assertEqual(self.opened[1][1:], ({"a": 3}, _told(a=7).note))
        self.assertEqual(self.run_step(_batch(a=9)), Trained(1, _told(a=7)))
        self.assertEqual(self.steps, [0, 0])
        self.assertFalse(self.share.is_step_lost)
        self.assertTrue(self.ready(worker=0))
        self.share._iterator = iter([self.opened[-1][0]])
        self.assertEqual(self.run_step(_says("none")), Trained(2, _told(a=9)))
        self.assertEqual(self.steps, [0, 0, 1])

    def test_what_cannot_be_read(self):
        where = "/job:worker/task:1 cannot read the stream: "
        with self.assertRaisesRegex(RuntimeError, f"^{where}KeyError: 'a'$"):
            self.ready(_says("error", "KeyError: 'a'"))
        text = DamagedFileError("a.gz ends early").as_text()
        with self.assertRaisesRegex(DamagedFileError, f"{where}a.gz ends"):
            self.ready(_says("error", text))
        self.assertFalse(self.share.is_lost)


class AskingTest(absltest.TestCase):
    def test_asks_for_a_batch_and_takes_none(self):
        calls = []

        def tell(name, done, seconds):
            calls.append((name.dtype, done, seconds.dtype))
            return tf.strings.join([name, tf.strings.as_string(seconds)], "-")

        with mock.patch.object(stream_share.worker_streams, "tell", tell):
            ask = stream_share.asking()
        found = ask(tf.constant("own"), tf.constant(0.5, tf.float64))
        self.assertEqual(found.numpy(), b"own-0.500000")
        self.assertEqual(calls, [(tf.string, 0, tf.float64)])


if __name__ == "__main__":
    absltest.main()
