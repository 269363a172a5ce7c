# SPDX-License-Identifier: Apache-2.0
"""A stream's own thread collects the cycle that its iterator is in."""

import gc
import threading
import weakref

from queue_source import Queue

import tf_ext

_SECONDS = 150


class Cycle:
    """Something that the garbage collector alone frees."""

    def __init__(self, held):
        self.held, self.itself = held, self


def main():
    queue = Queue(a=[])
    queue.add("a", b"1", b"2")
    schema = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])
    data = tf_ext.data.stream(queue, schema, batch_size=2, max_delay=0.01)
    gc.disable()
    # Collections are short, as they do not look at what imports have made.
    gc.collect()
    gc.freeze()
    gc.collect()
    iterator = iter(data.map(lambda batch: batch["x"]))
    print(next(iterator).numpy().tolist())
    cycle = Cycle(iterator)
    freed = weakref.ref(cycle)
    reader = weakref.ref(iterator)
    del iterator, cycle

    main_thread = threading.get_ident()

    def note(phase, info):
        is_full = phase == "stop" and info["generation"] == 2
        if is_full and threading.get_ident() != main_thread:
            gc.disable()
            done.release()

    done = threading.Lock()
    done.acquire()
    gc.callbacks.append(note)
    gc.set_threshold(1, 1, 1)
    # This thread makes no object until the stream's has collected garbage.
    gc.enable()
    has_collected = done.acquire(timeout=_SECONDS)
    gc.disable()
    assert has_collected, "The stream's thread does not end collecting."
    # For ever, if it waits for itself, this would do nothing.
    gc.collect()
    assert freed() is None and reader() is None, "It was not freed."


if __name__ == "__main__":
    main()
