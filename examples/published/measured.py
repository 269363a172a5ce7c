# SPDX-License-Identifier: Apache-2.0
"""What the examples of published figures report about a run."""

import json
import resource


def cpu_seconds():
    """The CPU time of this process so far, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(args, figures):
    """Prints the last line, and adds it to the log if test data were read.

    Args:
      args: the arguments of the program, with `test` and `log`.
      figures: dict of what was measured.

    Returns:
      dict of both, with CPU time and memory.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        **vars(args),
        **figures,
        "cpu_seconds": round(cpu_seconds()),
        "peak_mb": peak // 1024,
    }
    print(json.dumps(result))
    if args.test and args.log:
        with open(args.log, "a") as log:
            log.write(json.dumps(result) + "\n")
    return result
