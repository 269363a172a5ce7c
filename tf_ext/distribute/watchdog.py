# SPDX-License-Identifier: Apache-2.0
"""Kills processes when their parent has ended, however it ended.

It is run by its path and uses only the standard library, as importing tf_ext
takes seconds. Its standard input is a pipe from the parent, which names the
process groups to kill when the pipe breaks: a line `+12` adds group 12, a line
`-12` removes it.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Waits for the end of standard input, and kills the groups left."""
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
