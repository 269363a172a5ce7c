# SPDX-License-Identifier: Apache-2.0
"""Iterators of datasets, and the threads in which they run Python."""

import gc
import sys
import threading
import typing

import tensorflow as tf

_OF_DEVICES = "tensorflow.python.data.ops.multi_device_iterator_ops"


def iterators_of(generation: int) -> list[typing.Any]:
    """The iterators that a collection of a generation may free.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    classes = _classes()
    return [
        each
        for one in range(generation + 1)
        for each in gc.get_objects(one)
        if type(each) in classes
    ]


def _classes() -> set[type]:
    found: set[type] = set()
    waiting: list[type] = [tf.data.Iterator]
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting += one.__subclasses__()
    of_devices = sys.modules.get(_OF_DEVICES)
    if of_devices is not None:
        found.add(of_devices.OwnedMultiDeviceIterator)
    return found


def is_started_by_python() -> bool:
    """Whether Python has started this thread, and not TensorFlow.

    Seen in: Python 3.11.
    """
    thread = threading.current_thread()
    return not isinstance(thread, threading._DummyThread)
