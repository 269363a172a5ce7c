# SPDX-License-Identifier: Apache-2.0
"""Runs examples/daily.py, and kills it after a step of a day.

daily_kill_program.py DAY STEP ARGUMENTS OF daily.py
"""

import os
import signal
import sys

from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples"))

import daily

import tf_ext


def main():
    day, step, *arguments = sys.argv[1:]

    class KillingSnapshot(tf_ext.callbacks.TableSnapshot):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if self.directory.endswith(day) and batch + 1 == int(step):
                self._go_on(wait=True)
                os.kill(os.getpid(), signal.SIGKILL)

    tf_ext.callbacks.TableSnapshot = KillingSnapshot
    sys.argv = ["daily.py", *arguments]
    daily.main()


if __name__ == "__main__":
    main()
