# SPDX-License-Identifier: Apache-2.0
"""A source of streams in memory."""

import time

import tf_ext

Message = tf_ext.data.Message


class Queue(tf_ext.data.Source):
    """Lists of Messages, by partition; positions are their indices."""

    def __init__(self, **partitions):
        self.lists = partitions
        self.opened = []

    def add(self, partition, *values, **kwargs):
        messages = self.lists.setdefault(partition, [])
        for value in values:
            messages.append(
                Message(partition, len(messages) + 1, value, **kwargs)
            )

    def partitions(self):
        return list(self.lists)

    def position(self, partition, start):
        return 0 if start == "earliest" else len(self.lists[partition])

    def open(self, positions, follow):
        self.opened.append(dict(positions))
        return _Consumer(self.lists, positions, follow)


class _Consumer(tf_ext.data.Consumer):
    def __init__(self, lists, positions, follow):
        self._lists = lists
        self._next = dict(positions)
        self._follow = follow

    def poll(self, most, seconds):
        for name in self._next:
            found = self._lists[name][self._next[name] :][:most]
            if found:
                self._next[name] += len(found)
                return found
        time.sleep(seconds)
        return [] if self._follow else None

    def close(self):
        self._lists = None
