# SPDX-License-Identifier: Apache-2.0
"""Faults at random against tasks that train, and what each of them costs."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time
from concurrent import futures

from paths import PROGRAMS
from programs import faults_task_program as program

from clusters import (
    drawn_faults,
    fault_costs,
    networks,
    other_clocks,
    supervised_tasks,
)
from tf_ext.distribute.ports import free_ports

HANG_SECONDS = 90.0

_PORT = 2222
_POINTS_BYTES = 64 << 20
_START_SECONDS = 180.0
_POLL_SECONDS = 0.1
# Training that goes on for so long has recovered.
_QUIET_SECONDS = 8.0
_QUIET_PAUSE_SECONDS = 2.0
_QUIET_STEPS = 20
_SETTLE_SECONDS = 400.0


@dataclasses.dataclass
class Result:
    """What a training with faults came to.

    Attributes:
      costs: list of `(drawn_faults.Fault, Cost)`.
      epochs: how often each id should have been trained on.
      again: list of those of `costs` that trained steps again, although the
        documentation says that they do not.
      twice: {id: how often it was trained on too much}.
      missing: {id: how often it was not trained on}.
      more_iterations: of the dense optimizer, than steps.
      most_iterations: float, how many more there may be.
      ends: of `SupervisedTasks`.
    """

    costs: list[tuple[drawn_faults.Fault, fault_costs.Cost]]
    again: list[tuple[drawn_faults.Fault, fault_costs.Cost]]
    epochs: int
    twice: dict[int, float]
    missing: dict[int, float]
    more_iterations: int
    most_iterations: float
    ends: list[tuple[float, str, int]]

    def is_as_documented(self):
        """Whether rows are exact, and no more was trained again."""
        if not 0 <= self.more_iterations <= self.most_iterations:
            return False
        return not (self.twice or self.missing or self.again)


class HangError(AssertionError):
    """Training does not go on."""


class _Hosts:
    """The addresses of tasks, with networks of their own if permitted."""

    def __init__(self, names, folder, stack):
        self._names = names
        self._lock = threading.Lock()
        self._file = folder / "hosts"
        self.network = None
        if networks.are_permitted():
            self.network = stack.enter_context(networks.Network(len(names)))
            self.addresses = [f"{name}:{_PORT}" for name in names]
            self._write()
        else:
            self.addresses = [
                f"127.0.0.1:{port}" for port in free_ports(len(names))
            ]

    def arguments(self, index):
        """Arguments of the program of a task."""
        if self.network is None:
            return ["-", "-"]
        return [self.network.namespaces[index], str(self._file)]

    @contextlib.contextmanager
    def cut(self, tasks):
        """Two tasks do not reach each other in the block."""
        hosts = [self._names.index(task) for task in tasks]
        with self._lock:
            self.network.cut(*hosts)
        try:
            yield
        finally:
            with self._lock:
                self.network.heal(*hosts)

    def move(self, task):
        """Gives a task another address."""
        with self._lock:
            self.network.move(self._names.index(task))
            self._write()

    def _write(self):
        lines = ["127.0.0.1 localhost"]
        for name, address in zip(
            self._names, self.network.addresses, strict=True
        ):
            lines.append(f"{address} {name}")
        # In place: it is mounted.
        with self._file.open("w") as file:
            file.write("\n".join(lines) + "\n")


class Training:
    """Tasks that train while faults are made, in a `with` statement.

    Args:
      regime: one of `drawn_faults.REGIMES`.
      data: "chief" or "workers", which read them, or "stream", which workers
        read.
      execution: int, steps per execution, with a sign: they overlap.
      retry_steps: bool, of `fit`.
      keep: path of an existing folder for the logs, or None.
    """

    def __init__(
        self, regime, data="chief", execution=1, retry_steps=True, keep=None
    ):
        self._regime = regime
        self._names = drawn_faults.names_of(regime)
        self._arguments = [data, str(execution), str(int(retry_steps))]
        self._retry_steps = retry_steps
        self._keep = keep
        self._costs = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            if self._keep:
                folder = tempfile.mkdtemp(dir=self._keep)
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
            self._folder = pathlib.Path(folder)
            points = self._folder / "points"
            points.mkdir()
            self._has_own_disk = _mount(points, stack)
            self._hosts = _Hosts(self._names, self._folder, stack)
            self._clocks = other_clocks.OtherClocks(self._folder)
            self._steps = fault_costs.Steps(self._folder / "steps")
            servers = self._regime == "servers"
            self._tasks = stack.enter_context(
                supervised_tasks.SupervisedTasks(
                    self._commands(),
                    self._names[:1] if servers else self._names,
                    self._folder,
                )
            )
            try:
                self._wait_until_quiet(time.monotonic(), _START_SECONDS)
            except HangError:
                print(self.describe(), flush=True)
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def impossible(self):
        """The kinds of faults that need rights which this process lacks."""
        without_disk = () if self._has_own_disk else ("full disk",)
        without_network = () if self._hosts.network else ("cut", "move")
        without_clocks = () if self._clocks.are_possible else ("clock",)
        return (*without_network, *without_disk, *without_clocks)

    def suffer(self, fault):
        """Makes a fault, and waits until training goes on; what it cost.

        Raises:
          HangError: it does not.
        """
        time.sleep(fault.wait_seconds)
        begin = time.monotonic()
        print(f"{begin:.3f}: {fault}", flush=True)
        before = len(self._steps.read())
        if fault.second:
            with futures.ThreadPoolExecutor() as pool:
                for each in [
                    pool.submit(self._make, fault),
                    pool.submit(self._make_after_waiting, fault.second),
                ]:
                    each.result()
        else:
            self._make(fault)
        self._wait_until_quiet(begin)
        cost = fault_costs.of(self._steps.read(), before, begin)
        self._costs.append((fault, cost))
        return cost

    def end(self):
        """Ends training; its Result."""
        (self._folder / "stop").touch()
        deadline = time.monotonic() + HANG_SECONDS
        while not self._tasks.have_trained():
            if time.monotonic() > deadline:
                raise self._hang("it does not end")
            time.sleep(_POLL_SECONDS)
        results = [
            json.loads(path.read_text())
            for path in sorted(self._folder.glob("result-*"))
        ]
        epochs = results[0]["epochs"]
        found = dict.fromkeys(range(program.IDS), 0.0)
        for result in results:
            for name, count in result["rows"].items():
                found[int(name)] = found.get(int(name), 0.0) + count
        may_be_more = self._regime == "servers" and self._retry_steps
        return Result(
            self._costs,
            [
                (fault, cost)
                for fault, cost in self._costs
                if cost.lost_steps
                and drawn_faults.trains_nothing_again(
                    fault, self._regime, self._retry_steps
                )
            ],
            epochs,
            {i: n - epochs for i, n in found.items() if n > epochs},
            {i: epochs - n for i, n in found.items() if n < epochs},
            results[0]["iterations"] - epochs * program.STEPS,
            math.inf if may_be_more else 0,
            self._tasks.ends,
        )

    def describe(self):
        """A text with the logs."""
        return self._tasks.describe()

    def _commands(self):
        jobs = {}
        for name, address in zip(
            self._names, self._hosts.addresses, strict=True
        ):
            jobs.setdefault(name.rstrip("0123456789"), []).append(address)
        commands = {}
        for host, name in enumerate(self._names):
            job = name.rstrip("0123456789")
            task = {"type": job, "index": int(name[len(job) :])}
            commands[name] = (
                [
                    PROGRAMS / "faults_task_program.py",
                    *self._hosts.arguments(host),
                    str(self._folder),
                    *self._arguments,
                ],
                json.dumps({"cluster": jobs, "task": task}),
            )
        return commands

    def _make_after_waiting(self, fault):
        time.sleep(fault.wait_seconds)
        self._make(fault)

    def _make(self, fault):
        tasks = self._tasks
        [task] = fault.tasks if len(fault.tasks) == 1 else [None]
        if fault.kind in ("kill", "move"):
            with tasks.killed(task):
                if fault.kind == "move":
                    self._hosts.move(task)
        elif fault.kind == "clock":
            tasks.change(task, **self._clocks.another())
        elif fault.kind in ("terminate", "terminate all"):
            starts = [tasks.starts(each) for each in fault.tasks]
            for each in fault.tasks:
                tasks.send(each, signal.SIGTERM)
            for each, number in zip(fault.tasks, starts, strict=True):
                self._wait_for_start(each, number)
        elif fault.kind == "stop":
            tasks.send(task, signal.SIGSTOP)
            time.sleep(fault.seconds)
            tasks.send(task, signal.SIGCONT)
        elif fault.kind == "no writes":
            pid = tasks.send(task, 0)
            tasks.limit_files(pid, True)
            time.sleep(fault.seconds)
            tasks.limit_files(pid, False)
        elif fault.kind == "full disk":
            with _full(self._folder / "points"):
                time.sleep(fault.seconds)
        elif fault.kind == "cut":
            with self._hosts.cut(fault.tasks):
                time.sleep(fault.seconds)
        else:
            raise ValueError(fault.kind)

    def _wait_for_start(self, task, starts):
        deadline = time.monotonic() + HANG_SECONDS
        while self._tasks.starts(task) == starts:
            if time.monotonic() > deadline:
                raise self._hang(f"{task} does not end")
            time.sleep(_POLL_SECONDS)

    def _wait_until_quiet(self, begin, hang_seconds=HANG_SECONDS):
        over = time.monotonic()
        while True:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            lines = self._steps.read()
            last = max(lines[-1][0], over) if lines else over
            if now - last > hang_seconds:
                raise self._hang(f"no step for {now - last:.0f} s")
            if now - over > _SETTLE_SECONDS:
                raise self._hang(f"it stands still again and again, {begin}")
            recent = [
                at for at, *_ in lines[-20_000:] if at > now - _QUIET_SECONDS
            ]
            if now - over < _QUIET_SECONDS or len(recent) < _QUIET_STEPS:
                continue
            times = [now - _QUIET_SECONDS, *recent, now]
            if fault_costs.longest(times) < _QUIET_PAUSE_SECONDS:
                return

    def _hang(self, text):
        steps = self._steps.read()[-3:]
        return HangError(f"{text}; the last steps are {steps}.")


def _mount(folder, stack):
    """Whether the folder has got a disk of its own."""
    size = f"size={_POINTS_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command).returncode != 0:
        return False
    stack.callback(subprocess.run, ["umount", str(folder)], check=True)
    return True


@contextlib.contextmanager
def _full(folder):
    """Leaves no space on the disk of a folder."""
    path = folder / "fill"
    try:
        with path.open("wb", buffering=0) as file:
            block = bytes(4096)
            with contextlib.suppress(OSError):
                while True:
                    file.write(block)
        yield
    finally:
        path.unlink()


def run(
    seed,
    regime,
    count=3,
    longest_seconds=drawn_faults.LONGEST_SECONDS,
    keep=None,
    tell=lambda fault, cost: None,
):
    """Trains with faults of a seed.

    Args:
      seed: int.
      regime: one of `drawn_faults.REGIMES`.
      count: int, how many faults.
      longest_seconds: float, of a fault.
      keep: path of an existing folder for the logs, or None.
      tell: function that is called with each fault and its Cost.

    Returns:
      Result.

    Raises:
      HangError: training hangs; the logs have been printed.
    """
    rng = random.Random(f"{seed} {regime}")
    data, execution, retry_steps = "chief", 1, True
    if regime == "servers":
        data = rng.choice(["chief", "workers", "stream"])
        execution = 1 if data == "stream" else rng.choice([1, 4, -4])
        retry_steps = rng.choice([True, False])
    print(
        f"seed {seed}, {regime}, data of {data}, {execution} steps at once, "
        f"{'retried' if retry_steps else 'not retried'}",
        flush=True,
    )
    with Training(regime, data, execution, retry_steps, keep) as training:
        try:
            for _ in range(count):
                fault = drawn_faults.draw(
                    rng, regime, longest_seconds, training.impossible()
                )
                cost = training.suffer(fault)
                print(cost, flush=True)
                tell(fault, cost)
            result = training.end()
        except Exception:
            print(training.describe(), flush=True)
            raise
        if not result.is_as_documented():
            print(training.describe(), flush=True)
        return result
