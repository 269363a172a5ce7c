# SPDX-License-Identifier: Apache-2.0
"""Makes faults at random in trainings, and prints what each of them cost.

    PYTHONPATH=.:tests/support python \
        tests/support/programs/random_faults_program.py --seeds=0:40

It ends with status 1 if a training hung, or is not as the documentation says.
"""

import argparse
import collections
import functools
import pathlib
import signal
import statistics
import sys

from clusters import drawn_faults, random_faults


def _seeds(text):
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _table(*lines):
    head, *others = [f"| {' | '.join(map(str, line))} |" for line in lines]
    rule = "|" + "---|" * len(lines[0])
    return "\n".join([head, rule, *others])


class _Report:
    """Tables of what faults cost."""

    def __init__(self):
        self._costs = []
        self._trainings = []

    def add(self, regime, seed, fault, cost):
        """Adds a fault and its `fault_costs.Cost`."""
        self._costs.append((regime, seed, fault, cost))

    def add_training(self, *line):
        """Adds a line about a training, which is printed."""
        self._trainings.append(line)
        print(*line, flush=True)

    def print(self):
        """Prints all tables."""
        head = "regime", "seed", "fault", "recovery s", "pause s"
        lines = [
            (
                *(regime, seed, fault, f"{cost.recovery_seconds:.1f}"),
                *(f"{cost.pause_seconds:.1f}", cost.lost_steps),
                f"{cost.lost_seconds:.1f}",
            )
            for regime, seed, fault, cost in self._costs
        ]
        print(_table((*head, "lost steps", "lost s"), *lines), end="\n\n")
        head = "regime", "seed", "epochs", "twice", "missing", "again", "dense"
        print(_table(head, *self._trainings), end="\n\n")
        kinds = collections.defaultdict(list)
        for regime, _, fault, cost in self._costs:
            kind = "two faults" if fault.second else fault.kind
            kinds[regime, kind].append(cost)
        head = (
            *("regime", "kind", "faults", "recovery s: median", "worst"),
            *("lost steps: median", "worst", "lost s: worst"),
        )
        print(
            _table(
                head,
                *((*key, *_summary(kinds[key])) for key in sorted(kinds)),
            ),
            flush=True,
        )


def _summary(costs):
    seconds = [cost.recovery_seconds for cost in costs]
    steps = [cost.lost_steps for cost in costs]
    return (
        *(len(costs), f"{statistics.median(seconds):.1f}"),
        *(f"{max(seconds):.1f}", statistics.median(steps), max(steps)),
        f"{max(cost.lost_seconds for cost in costs):.1f}",
    )


def _options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=_seeds, default="0:5")
    parser.add_argument("--regimes", nargs="*", default=drawn_faults.REGIMES)
    parser.add_argument("--faults", type=int, default=3, help="in a training")
    parser.add_argument(
        "--longest", type=float, default=drawn_faults.LONGEST_SECONDS
    )
    parser.add_argument("--keep", type=pathlib.Path, help="folder for logs")
    return parser.parse_args()


def _train(options, report):
    """Whether all trainings are as the documentation says."""
    succeeded = True
    for seed in options.seeds:
        for regime in options.regimes:
            try:
                result = random_faults.run(
                    *(seed, regime, options.faults, options.longest),
                    keep=options.keep,
                    tell=functools.partial(report.add, regime, seed),
                )
            except random_faults.HangError as error:
                report.add_training(regime, seed, f"hangs: {error}")
                succeeded = False
                continue
            report.add_training(
                *(regime, seed, result.epochs, len(result.twice)),
                *(len(result.missing), len(result.again)),
                result.more_iterations,
            )
            succeeded = succeeded and result.is_as_documented()
    return succeeded


def main():
    # Networks and mounts end with their blocks.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    report = _Report()
    try:
        sys.exit(not _train(_options(), report))
    finally:
        report.print()


if __name__ == "__main__":
    main()
