# SPDX-License-Identifier: Apache-2.0
"""SIGTERM for programs that are process 1, as those of containers are.

Linux applies no default action of a signal to process 1 of a PID namespace: a
program without a handler ignores SIGTERM, and is killed some time later.
"""

import os
import signal
import threading
import types


def end_on_sigterm() -> None:
    """Has SIGTERM end this process, if it is process 1 and would ignore it.

    Handlers of the program stay, and handlers that it sets later take its
    place. Outside of the main thread Python cannot set handlers, and nothing is
    done.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if (
        os.getpid() == 1
        and in_main_thread
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: types.FrameType | None) -> None:
    """Ends the process as the default action does elsewhere: at once."""
    del frame
    os._exit(128 + number)  # As shells and containers report it.
