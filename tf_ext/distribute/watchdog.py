"""Kills processes when the one that started them has ended, however it ended.

It is run by its path and uses the standard library alone, for importing tf_ext
takes seconds. Its standard input is a pipe from the process that starts it,
which says what to kill when the pipe breaks: a line `+12` adds the process
group 12, a line `-12` takes it out.
"""

import contextlib
import os
import signal
import sys


def main():
    """Waits for the end of standard input, and kills what is left."""
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
