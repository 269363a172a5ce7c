# SPDX-License-Identifier: Apache-2.0
"""Interrupts at any point at which Python would handle a signal."""

import contextlib
import dis
import functools
import pathlib
import signal
import sys
import threading

import tensorflow as tf

import tf_ext

_PACKAGE = str(pathlib.Path(tf_ext.__file__).parent)
# Its contexts are functions of Python, which an interrupt can find as well.
_CONTEXTS = contextlib.__file__
_TENSORFLOW = str(pathlib.Path(tf.__file__).parent)
_THREADING = threading.__file__
_LATER_SECONDS = 1e-4


def take_interrupts(test):
    """Has this process handle SIGINT, as from a terminal, until a test ends.

    It is ignored by processes of pytest-xdist, and by those that a shell runs
    in the background.

    Args:
      test: unittest.TestCase.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    test.addCleanup(signal.signal, signal.SIGINT, before)


@functools.cache
def _points(code):
    """The offsets of instructions before which signals are handled."""
    entries = dis.Bytecode(code).exception_entries
    found, call = set(), None
    for each in dis.get_instructions(code):
        # Where a block ends with a call, its handler would be passed by here,
        # but not where Python handles a signal.
        if call is not None and _handler(entries, each) == call:
            found.add(each.offset)
        is_call = each.opname == "RESUME" or each.opname.startswith("CALL")
        call = _handler(entries, each) if is_call else None
        if each.opname.startswith("JUMP_BACKWARD"):
            found.add(each.argval)
    return frozenset(found)


def _handler(entries, instruction):
    """Where an error goes on; -1 if it leaves the function."""
    for entry in entries:
        if entry.start <= instruction.offset < entry.end:
            return entry.target
    return -1


class Interrupts:
    """A block that raises KeyboardInterrupt at points that are counted.

    They are those of tf_ext, and of its contexts, in this thread.

    Args:
      first: int, the number of the point, from 1. None: the block is not
        interrupted.
      second: int, the number of the call, or return from one, after the first
        interrupt at which another one comes; None: none does.

    Attributes:
      points: list of the points before the interrupt, the code and offset of
        each.
    """

    def __init__(self, first, second=None):
        self._first, self._second = first, second
        self._calls = 0
        self._has_come = False
        self.points = []

    def __enter__(self):
        if self._second is not None:
            sys.setprofile(self._on_call)
        sys.settrace(self._on_function)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
        sys.setprofile(None)

    def _on_function(self, frame, event, argument):
        del event, argument
        if not _is_counted(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_instruction

    def _on_instruction(self, frame, event, argument):
        del argument
        if event == "opcode" and frame.f_lasti in _points(frame.f_code):
            self.points.append((frame.f_code, frame.f_lasti))
            if len(self.points) == self._first:
                self._has_come = True
                raise KeyboardInterrupt  # Python ends the tracing.
        return self._on_instruction

    def _on_call(self, frame, event, argument):
        del argument
        # Signals are handled when a function begins, and after a call in C.
        is_point = event in ("call", "c_return")
        if not (self._has_come and is_point and _is_counted(frame)):
            return
        self._calls += 1
        if self._calls == self._second:
            raise KeyboardInterrupt  # Python ends the profiling.


def _is_counted(frame):
    name = frame.f_code.co_filename
    if name == _CONTEXTS:
        return frame.f_back is not None and _is_counted(frame.f_back)
    return name.startswith(_PACKAGE)


def representative(points):
    """The numbers, from 1, at which each point comes first, and comes last."""
    first, last = {}, {}
    for number, point in enumerate(points, 1):
        first.setdefault(point, number)
        last[point] = number
    return sorted({*first.values(), *last.values()})


def run(operation, first=None, second=None):
    """Runs a function; `(whether it was interrupted, its points)`."""
    interrupts = Interrupts(first, second)
    try:
        with interrupts:
            operation()
    except KeyboardInterrupt:
        return True, interrupts.points
    return False, interrupts.points


def at_each_point(operation):
    """Runs a function time and again, interrupted at one point after another.

    Yields:
      `(whether it was interrupted, its last point)`; at last it was not.
    """
    was_interrupted, first = True, 0
    while was_interrupted:
        first += 1
        was_interrupted, points = run(operation, first)
        yield was_interrupted, points[-1]


_is_due = _has_come = False


def _interrupt(number, frame):
    global _is_due, _has_come
    if not _is_due:  # A signal can come after its timer was stopped.
        return
    if _is_left_alone(frame):
        signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
        return
    _is_due, _has_come = False, True
    signal.default_int_handler(number, frame)


def _is_left_alone(frame):
    """Whether a frame, or what begins or ends its context, cannot cope.

    Conditions and Events of Python stay locked if an interrupt comes as they
    are entered: a thread that begins would wait for ever to say so.

    TensorFlow 2.21 crashes if the handler of a signal raises while it converts
    Python's values: `tf.constant("x")` in a loop is enough. The frame is then
    of what has called that. Nor do all its contexts end after an interrupt.
    """
    passed = (_CONTEXTS, __file__)  # It may find this handler, too.
    while frame.f_code.co_filename in passed and frame.f_back:
        frame = frame.f_back
    name = frame.f_code.co_filename
    # The wrappers of ops have no file.
    return name in ("<string>", _THREADING) or name.startswith(_TENSORFLOW)


def run_for(operation, seconds):
    """Runs a function, and interrupts it by a signal after some seconds.

    Returns:
      Whether it was interrupted.
    """
    global _is_due, _has_come
    signal.signal(signal.SIGALRM, _interrupt)
    try:
        try:
            _is_due, _has_come = True, False
            signal.setitimer(signal.ITIMER_REAL, seconds)
            operation()
        finally:
            _is_due = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (KeyboardInterrupt, Exception):
        # NumPy makes other errors of it in places.
        if not _has_come:
            raise
    return _has_come
