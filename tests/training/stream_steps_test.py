# SPDX-License-Identifier: Apache-2.0
"""Which batches of streams steps wait for, and which were trained on."""

import inspect
import time
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from queue_source import Queue

import tf_ext
from tf_ext._keras import keras
from tf_ext.data.progress import streams_of
from tf_ext.training import stream_steps
from tf_ext.training.stream_steps import ENDED, FAILED, HAS_BATCH, LATER

pytestmark = pytest.mark.both_kerases

_SCHEMA = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])


class _Stream:
    """One with so many batches, which gets no more."""

    def __init__(self, noted=0, has_ended=False):
        self.noted = noted
        self.has_ended = has_ended
        self.seen = []

    def wait(self, batches, stop):
        self.seen.append(("wait", batches))
        if self.noted >= batches or self.has_ended:
            return True
        assert stop(), "it waits without an end"
        return False

    def prepare(self):
        self.seen.append("prepare")

    def advance(self, batches):
        self.seen.append(("advance", batches))
        self.noted -= batches


class _Processes:
    """Those of which this one is the first; `rounds` is what others tell."""

    def __init__(self, *rounds):
        self._rounds = [*rounds]
        self.told = []

    def gather(self, mine):
        self.told.append(mine.numpy().tolist())
        others = tf.constant(self._rounds.pop(0), tf.int64)
        return tf.concat([mine[tf.newaxis], others], 0)


class WaitTest(parameterized.TestCase):
    @parameterized.parameters(
        # Batches, and whether it has ended, of two streams; what is found.
        (2, False, 3, False, True),
        (1, False, 3, False, False),
        (3, False, 1, False, False),
        (1, True, 2, False, True),
        # No step has a batch of both.
        (1, True, 0, False, True),
        (0, False, 1, True, True),
    )
    def test_needs_a_batch_of_each_stream(
        self, first, first_ended, second, second_ended, is_ready
    ):
        streams = [
            _Stream(first, first_ended),
            _Stream(second, second_ended),
        ]
        # Where a stream has ended, nothing is waited for.
        stops = not (first_ended or second_ended)
        found = stream_steps.wait_for(streams, 2, lambda: stops)
        self.assertIs(found, is_ready)
        self.assertEqual(streams[0].seen, [("wait", 2)])

    def test_time_passes(self):
        with mock.patch.object(time, "monotonic") as now:
            now.return_value = 5.0
            is_over = stream_steps.until(0.5)
            for now.return_value, over in (
                (5.0, False),
                (5.25, False),
                (5.5, True),
                (6.0, True),
            ):
                self.assertIs(is_over(), over)


class AgreeTest(tf.test.TestCase):
    def agree(self, mine, *rounds, told=None):
        """What is found, and the calls: of telling, and meanwhile."""
        calls = []
        told_by = iter(mine)

        def tell():
            calls.append("tell")
            return [next(told_by), 7]

        found = stream_steps.agree(
            _Processes(*rounds), tell, lambda: calls.append("meanwhile"), told
        )
        return found.tolist(), calls

    def test_goes_on_until_none_waits(self):
        found, calls = self.agree([HAS_BATCH], [[ENDED, 3], [HAS_BATCH, 4]])
        self.assertEqual(found, [[HAS_BATCH, 7], [ENDED, 3], [HAS_BATCH, 4]])
        self.assertEqual(calls, ["tell"])
        found, calls = self.agree(
            [HAS_BATCH, HAS_BATCH, ENDED],
            [[LATER, 0]],
            [[LATER, 0]],
            [[ENDED, 0]],
        )
        self.assertEqual(found, [[ENDED, 7], [ENDED, 0]])
        self.assertEqual(calls, ["tell", "meanwhile"] * 2 + ["tell"])
        found, calls = self.agree(
            [LATER, HAS_BATCH], [[ENDED, 0]], [[ENDED, 1]]
        )
        self.assertEqual(found, [[HAS_BATCH, 7], [ENDED, 1]])

    def test_one_that_fails_ends_it(self):
        found, calls = self.agree([LATER], [[FAILED, 0]])
        self.assertEqual(found, [[LATER, 7], [FAILED, 0]])
        self.assertEqual(calls, ["tell"])

    def test_what_they_have_told_already(self):
        told = np.array([[HAS_BATCH, 1], [ENDED, 0]])
        found, calls = self.agree([], told=told)
        self.assertEqual((found, calls), (told.tolist(), []))
        told = np.array([[HAS_BATCH, 1], [LATER, 0]])
        found, calls = self.agree([HAS_BATCH], [[ENDED, 0]], told=told)
        self.assertEqual(found, [[HAS_BATCH, 7], [ENDED, 0]])
        self.assertEqual(calls, ["tell"])

    def test_nothing_to_do_meanwhile(self):
        found = stream_steps.agree(
            _Processes([[LATER]], [[ENDED]]), lambda: [ENDED], None
        )
        self.assertEqual(found.tolist(), [[ENDED], [ENDED]])


class CounterTest(parameterized.TestCase):
    def counter(self, *streams, execution=1, steps=None, waits=True, by=None):
        inputs = keras.Input([1])
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD()),
            "mse",
            steps_per_execution=execution,
        )
        counter = stream_steps._Counter([*streams], by, waits)
        counter.set_model(model)
        counter.set_params({"steps": steps} if steps else {})
        return counter

    @parameterized.parameters(
        # The steps of an execution and of an epoch, and its first one.
        (1, None, 0, 1),
        (1, 5, 4, 1),
        (4, None, 7, 4),
        (4, 10, 0, 4),
        (4, 10, 6, 4),
        (4, 10, 7, 3),
        (4, 10, 9, 1),
        (4, 10, 10, 1),
        (4, 3, 0, 3),
    )
    def test_waits_for_an_execution(self, execution, steps, batch, wanted):
        stream = _Stream(99)
        counter = self.counter(stream, execution=execution, steps=steps)
        counter.on_train_batch_begin(batch)
        # tf_keras 2 begins each batch of it.
        counter.on_train_batch_begin(batch + 1)
        self.assertEqual(stream.seen, [("wait", wanted)])

    def test_does_not_wait_for_what_is_cut_off(self):
        stream = _Stream(0)
        counter = self.counter(stream, waits=False)
        counter.on_train_batch_begin(0)
        self.assertEqual(stream.seen, [])

    def test_a_notice_ends_waiting(self):
        class Preempted(Exception):
            pass

        resuming = types.SimpleNamespace(
            sigterm_received=True,
            end_if_preempted=mock.Mock(side_effect=Preempted),
        )
        counter = self.counter(_Stream(0), by=resuming)
        with self.assertRaises(Preempted):
            counter.on_train_batch_begin(0)
        resuming.end_if_preempted.assert_called_once_with()

    def test_what_ends_a_round_of_waiting(self):
        """A notice; among several workers the time, for all to agree on it."""
        notice = types.SimpleNamespace(
            sigterm_received=False, end_if_preempted=lambda: None
        )
        stops = []

        def wait(batches, stop):
            stops.append(bool(stop()))
            return True

        stream = types.SimpleNamespace(has_ended=False, wait=wait)
        for by, count, wanted in (
            (None, 1, False),
            (notice, 1, False),
            (notice, 2, True),
        ):
            counter = self.counter(stream, by=by)
            processes = _Processes([[HAS_BATCH]])
            processes.count = count
            with (
                mock.patch.object(stream_steps, "ROUND_SECONDS", 0.0),
                mock.patch.object(
                    stream_steps,
                    "regime_of_model",
                    return_value=types.SimpleNamespace(processes=processes),
                ),
            ):
                counter.on_train_batch_begin(0)
            self.assertEqual(processes.told, [[HAS_BATCH]])
            self.assertIs(stops.pop(), wanted)

    def test_steps_that_were_made(self):
        for first, last, noted, wanted in (
            (0, 0, 5, 1),
            (4, 7, 5, 4),
            (4, 7, 3, 3),  # The data ended.
            (None, 6, 5, 1),
        ):
            streams = [_Stream(9), _Stream(noted, has_ended=True)]
            counter = self.counter(*streams, execution=4)
            if first is not None:
                counter.on_train_batch_begin(first)
            counter.on_train_batch_end(last)
            counter.on_train_batch_end(last + 1)
            for stream in streams:
                made = [one for one in stream.seen if one[0] == "advance"]
                left = min(1, noted - wanted)
                self.assertEqual(made, [("advance", wanted), ("advance", left)])

    def test_an_execution_that_the_data_ended(self):
        for waits, begins, wanted in (
            (True, True, [("advance", 3)]),
            (True, False, []),
            (False, True, []),
        ):
            stream = _Stream(3, has_ended=True)
            counter = self.counter(stream, execution=4, waits=waits)
            if begins:
                counter.on_train_batch_begin(8)
            stream.seen.clear()
            counter.on_epoch_end(0)
            self.assertEqual(stream.seen, wanted)

    def test_epochs_begin_streams_that_ended(self):
        streams = [_Stream(3), _Stream(3, has_ended=True)]
        counter = self.counter(*streams)
        counter.on_train_begin()
        counter.on_train_batch_begin(0)
        for stream in streams:
            self.assertEqual(stream.seen, ["prepare", ("wait", 1)])
            stream.seen.clear()
        counter.on_epoch_begin(1)
        self.assertEqual([one.seen for one in streams], [[], ["prepare"]])
        # The epoch before has ended within an execution.
        counter.on_train_batch_begin(0)
        self.assertEqual(streams[0].seen, [("wait", 1)])

    def test_executions_of_several_steps_end_early(self):
        counter = self.counter(_Stream(), execution=2, waits=False)
        with self.assertRaisesRegex(
            ValueError, "derived by `take` if.*steps_per_execution=2"
        ):
            counter.on_train_begin()
        self.counter(execution=1, waits=False).on_train_begin()
        self.counter(execution=2, waits=True).on_train_begin()


class FitTest(absltest.TestCase):
    def stream(self):
        return tf_ext.data.stream(Queue(a=[]), _SCHEMA, "csv", batch_size=2)

    def test_validation_reads_another_stream(self):
        one, other = self.stream(), self.stream()
        for data, validation in ((one, other), (one, None), (None, None)):
            stream_steps.check_validation(data, validation)
        with self.assertRaisesRegex(
            ValueError, "must not read the stream that `x` reads"
        ):
            stream_steps.check_validation(one, one.take(1))

    def test_the_callback_that_saves_positions_knows_the_streams(self):
        points = tf_ext.callbacks.TableSnapshot("unused", steps=1)
        data = self.stream()
        with mock.patch.object(points, "take_streams") as take:
            found = stream_steps.tell_streams([points], data)
            self.assertEqual(found, streams_of(data))
            take.assert_called_once_with(found)
            with self.assertRaisesRegex(ValueError, "a batch for each batch"):
                stream_steps.tell_streams([points], data.batch(2))
            self.assertEqual(stream_steps.tell_streams(None, [1]), [])

    def test_callbacks_know_the_streams(self):
        data = self.stream()
        own = keras.callbacks.Callback()
        model = tf_ext.Model(inputs := keras.Input([1]), inputs)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")

        def fit(x, callbacks=None):
            pass

        for x, callbacks, count in (
            (data, None, 1),
            (data, own, 2),
            (data, [own], 2),
            (tf.data.Dataset.range(2), [own], 1),
        ):
            given = inspect.signature(fit).bind(x, callbacks)
            with stream_steps.counting_batches(model, given):
                found = given.arguments["callbacks"]
            self.assertLen(found, count)
            self.assertIs(found[-1] is own, callbacks is not None)
            counts = isinstance(found[0], stream_steps._Counter)
            self.assertEqual(counts, x is data)

    def test_the_list_of_callbacks_is_as_before(self):
        own = keras.callbacks.Callback()
        model = tf_ext.Model(inputs := keras.Input([1]), inputs)
        listed = keras.callbacks.CallbackList(
            [own], model=model, add_history=False, epochs=3
        )
        given = inspect.signature(lambda x, callbacks: None).bind(
            self.stream(), listed
        )
        with (
            self.assertRaises(KeyError),
            stream_steps.counting_batches(model, given),
        ):
            counter, found = listed.callbacks
            self.assertIs(found, own)
            self.assertIs(counter.model, model)
            self.assertEqual(counter.params["epochs"], 3)
            raise KeyError
        self.assertEqual(listed.callbacks, [own])
        self.assertIs(given.arguments["callbacks"], listed)


if __name__ == "__main__":
    absltest.main()
