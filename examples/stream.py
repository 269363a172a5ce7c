# SPDX-License-Identifier: Apache-2.0
r"""From events to answers: a model that learns from a stream while it serves.

Five programs run side by side. A producer sends impressions and clicks to a
broker (stream_data.py). A trainer reads and joins them, and writes a recovery
point every second; a publisher puts what has changed into a store
(stream_training.py). A server answers requests from the store, without the
tables (stream_server.py). This one asks the server, and measures:

- the AUC by the age of the model: one that gets each point, others that get
  one more rarely, and one that is never renewed. What users like drifts and
  items come and go, in a minute what may take a day elsewhere;
- the lag, from an event until answers come from a model that has learnt it;
- answers that differ from what the trained model said at the step that they
  name, events that were not trained on, and the CPU time of each program.

    pip install '.[examples]'
    python stream.py
    python stream.py --broker=kafka://localhost:9092 \
        --store=redis://localhost:6379/0 --plot=auc.png

Without arguments, broker and store are folders. `pip install '.[kafka,redis]'`
for the others, `.[plot]` for a plot. The last line on standard output is a JSON
object; the exit status is 1 if an answer was wrong or something was lost.
"""

import argparse
import bisect
import collections
import contextlib
import http.client
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import numpy as np
import stream_data

FOLDER = pathlib.Path(__file__).resolve().parent
FRESH, ONCE = "fresh", "once"
# Samples whose scores the trainer notes at each point, how many of them are in
# a request, and how many impressions of the moment.
SAMPLES, KNOWN, NEW = 64, 8, 64
# What another order of summation may change in a float32 probability.
TOLERANCE = 1e-5
SECONDS_BETWEEN_REQUESTS = 0.1
SECONDS_TO_START = 240
SECONDS_TO_END = 120

Answer = collections.namedtuple(
    "Answer", ["name", "time", "steps", "seconds", "known", "scores", "chances"]
)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--broker", help="kafka://HOST:PORT, redis://HOST:PORT/0 or a folder"
    )
    parser.add_argument("--store", help="redis://HOST:PORT/0 or a folder")
    parser.add_argument(
        "--rate", type=int, default=5000, help="events a second"
    )
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument(
        "--warm_seconds",
        type=int,
        default=30,
        help="what is learnt before anything is measured",
    )
    parser.add_argument(
        "--window", type=float, default=1.0, help="seconds in which clicks come"
    )
    parser.add_argument(
        "--point_seconds", type=float, default=1.0, help="between two points"
    )
    parser.add_argument(
        "--every",
        nargs="*",
        type=int,
        default=[15, 60],
        help="after how many seconds other models are renewed",
    )
    parser.add_argument(
        "--bin_seconds", type=int, default=10, help="of a line of the table"
    )
    parser.add_argument("--plot", help="file for a plot of the AUC")
    args = parser.parse_args(arguments)
    for name in ("rate", "seconds", "warm_seconds", "bin_seconds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if args.seconds < args.warm_seconds + args.bin_seconds:
        parser.error(
            f"--seconds={args.seconds} must be at least --warm_seconds="
            f"{args.warm_seconds} and --bin_seconds={args.bin_seconds} together"
        )
    return args


class Program:
    """One of the programs, which ends when the context is left.

    Args:
      role: string.
      command: the program and its arguments.
    """

    def __init__(self, role, *command):
        self.role = role
        program, *arguments = map(str, command)
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def read_line(self, seconds):
        """The next line that it prints.

        Raises:
          RuntimeError: it printed none, or not in time.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise RuntimeError(f"{self.role}: nothing after {seconds} s.")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.role} ended: {self._process.wait()}.")
        return line.strip()

    def check(self):
        """Raises RuntimeError if it has ended by an error."""
        if self._process.poll():
            raise RuntimeError(f"{self.role} ended: {self._process.poll()}.")

    def cpu_seconds(self):
        """The CPU time that it has taken."""
        path = pathlib.Path("/proc", str(self._process.pid), "stat")
        with contextlib.suppress(FileNotFoundError):
            fields = path.read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self, seconds=SECONDS_TO_END):
        """Lets it end, as its standard input does, and waits for it."""
        self._process.stdin.close()
        self._process.wait(seconds)
        self.check()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def auc_of(scores, chances):
    """The AUC of scores of impressions, of which clicks have these chances.

    Each counts as a click and as none, by its chance: no labels are drawn.
    """
    order = np.argsort(scores, kind="stable")
    clicks = np.asarray(chances)[order]
    others = np.cumsum(1 - clicks)
    # Of those with equal scores, of which there are few, the order decides.
    before = others - (1 - clicks) / 2
    return float((clicks * before).sum() / (clicks.sum() * others[-1]))


class Client:
    """Asks the server for scores, by each model in turn.

    Args:
      port: int, of the server.
      names: dict from models to their names in the store.
      samples: dict of lists, of SAMPLES texts.
      begin: float, when the world began.
    """

    def __init__(self, port, names, samples, begin):
        self.answers = []
        self.failures = []
        self._names, self._samples, self._begin = names, samples, begin
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._world = stream_data.World()
        self._rng = np.random.default_rng()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def _run(self):
        while not self._ended.wait(SECONDS_BETWEEN_REQUESTS):
            for name in self._names:
                try:
                    self.answers.append(self._ask(name))
                except (OSError, ValueError, http.client.HTTPException) as e:
                    self.failures.append(repr(e))
                    self._connection.close()

    def _ask(self, name):
        now = time.time()
        new, chances = self._world.impressions(
            self._rng, now - self._begin, NEW
        )
        places = self._rng.choice(SAMPLES, KNOWN, replace=False).tolist()
        body = {
            feature: values + [self._samples[feature][i] for i in places]
            for feature, values in stream_data.texts(new).items()
        }
        begin = time.perf_counter()
        path = f"/{self._names[name]}"
        self._connection.request("POST", path, json.dumps(body))
        response = self._connection.getresponse()
        text = response.read()
        seconds = time.perf_counter() - begin
        if response.status != 200:
            raise ValueError(f"{response.status}: {text!r}")
        answer = json.loads(text)
        scores = answer["scores"]
        known = list(zip(places, scores[NEW:], strict=True))
        return Answer(
            *(name, now, answer["steps"], seconds, known),
            *(scores[:NEW], chances),
        )


def read_lines(path):
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_right(answer, expected):
    """Whether an answer is that of a model that was published.

    Args:
      answer: Answer.
      expected: dict from steps to scores of the samples.
    """
    first, last = answer.steps
    return any(
        all(
            abs(score - expected[step][place]) <= TOLERANCE
            for place, score in answer.known
        )
        for step in expected
        if first <= step <= last
    )


def lags_of(steps, answers, first, last):
    """Seconds from events until answers come from a model that knows them.

    Args:
      steps: list of dicts, `step` and `event_time`, of its newest event.
      answers: list of Answers of the model that gets each point.
      first: float, the time of the first events that count.
      last: float, that of the last ones.
    """
    times = [note["event_time"] for note in steps]
    seen, newest = [], 0
    for answer in answers:
        if answer.steps[0] > newest:
            newest = answer.steps[0]
            seen.append((newest, answer.time + answer.seconds))
    lags = []
    for when in np.arange(first, last, 0.02):
        place = bisect.bisect_left(times, when)
        if place == len(times):
            break
        found = bisect.bisect_left(seen, (steps[place]["step"], 0))
        if found < len(seen):
            lags.append(seen[found][1] - when)
    return lags


def auc_by_bin(answers, begin, args):
    """The AUC of each model in each bin: `{name: [auc]}`."""
    bins = collections.defaultdict(list)
    for answer in answers:
        place = int(answer.time - begin - args.warm_seconds) // args.bin_seconds
        bins[answer.name, place].append((answer.scores, answer.chances))
    names = dict.fromkeys(answer.name for answer in answers)
    count = (args.seconds - args.warm_seconds) // args.bin_seconds
    return {
        name: [
            round(auc_of(*map(np.concatenate, zip(*bins[name, n]))), 4)
            if bins[name, n]
            else None
            for n in range(count)
        ]
        for name in names
    }


def percentiles(values):
    return {
        f"p{percent}": round(float(np.percentile(values, percent)), 3)
        for percent in (50, 99)
    }


def cpu_seconds(programs, addresses):
    """The CPU time of programs, of Redis at some addresses, and of this one."""
    used = {program.role: program.cpu_seconds() for program in programs}
    for address in sorted(addresses):
        if address.startswith("redis://"):
            used[address] = stream_data.redis_cpu_seconds(address)
    return used | {"client": time.process_time()}


def run(folder, args):
    """Runs all programs; returns what was measured."""
    broker = args.broker or str(folder / "broker")
    store = args.store or str(folder / "store")
    # So that nothing of an earlier run is met.
    mark = uuid.uuid4().hex[:8]
    topics = [f"impressions-{mark}", f"clicks-{mark}"]
    periods = {
        FRESH: 0,
        **{f"every-{seconds}": seconds for seconds in args.every},
        ONCE: "inf",
    }
    stored = {name: f"{name}-{mark}" for name in periods}
    stream_data.broker_at(broker).make_topics(topics)
    world, rng = stream_data.World(), np.random.default_rng(0)
    samples, _ = world.impressions(
        rng, np.linspace(0, args.seconds, SAMPLES), SAMPLES
    )
    samples = stream_data.texts(samples)
    (folder / "samples.json").write_text(json.dumps(samples))
    records = args.rate * args.seconds
    with contextlib.ExitStack() as stack:

        def start(role, *command):
            return stack.enter_context(Program(role, *command))

        trainer = start(
            *("trainer", "stream_training.py", "train", folder, broker),
            *("--topics", *topics, f"--records={records}"),
            *(f"--window={args.window}",),
            f"--point_seconds={args.point_seconds}",
        )
        publisher = start(
            *("publisher", "stream_training.py", "publish", folder, store),
            *(f"--warm_seconds={args.warm_seconds}", "--models"),
            *(f"{stored[name]}:{every}" for name, every in periods.items()),
        )
        server = start("server", "stream_server.py", store, *stored.values())
        for program in (trainer, publisher, server):
            program.read_line(SECONDS_TO_START)
        begin = time.time()
        producer = start(
            *("producer", "stream_data.py", broker, "--topics", *topics),
            *(f"--rate={args.rate}", f"--seconds={args.seconds}"),
            *(f"--window={args.window}", f"--begin={begin}"),
        )
        # There is a version of each model once that is over.
        port = int(server.read_line(args.warm_seconds + SECONDS_TO_START))
        programs = [producer, trainer, publisher, server]
        time.sleep(max(0.0, begin + args.warm_seconds - time.time()))
        measured = time.time()
        before = cpu_seconds(programs, {broker, store})
        with Client(port, stored, samples, begin) as client:
            while time.time() < begin + args.seconds:
                time.sleep(0.2)
                for program in programs:
                    program.check()
            wall = time.time() - measured
            after = cpu_seconds(programs, {broker, store})
            trained = json.loads(trainer.read_line(SECONDS_TO_END))
            trainer.end()
            producer.end()
            publisher.end()
            last = read_lines(folder / "steps.jsonl")[-1]["step"]
            deadline = time.monotonic() + SECONDS_TO_END
            while time.monotonic() < deadline:
                time.sleep(0.1)
                fresh = [a for a in client.answers if a.name == FRESH]
                if fresh and fresh[-1].steps[0] == last:
                    break
        server.end()
    expected = {
        note["step"]: note["scores"]
        for note in read_lines(folder / "answers.jsonl")
    }
    answers = client.answers
    if not answers:
        raise RuntimeError(f"There is no answer: {client.failures[:3]}")
    lags = lags_of(
        read_lines(folder / "steps.jsonl"),
        fresh,
        begin + args.warm_seconds,
        begin + args.seconds,
    )
    return {
        "auc": auc_by_bin(answers, begin, args),
        "lag_seconds": percentiles(lags),
        "answers": len(answers),
        "answer_seconds": percentiles([answer.seconds for answer in answers]),
        "versions": len({answer.steps[0] for answer in fresh}),
        "wrong": sum(not is_right(answer, expected) for answer in answers),
        "failed": len(client.failures),
        "not_served": last - fresh[-1].steps[0],
        "events": records,
        "trained": trained["records"],
        "joined": trained["joined"],
        "late": trained["late"],
        "cores": {k: round((after[k] - before[k]) / wall, 3) for k in after},
    }


def print_result(result, args):
    """Prints a table of the AUC, and what else was measured."""
    names = list(result["auc"])
    print(f"{'seconds':>9}" + "".join(f"{name:>11}" for name in names))
    for number, row in enumerate(zip(*result["auc"].values())):
        first = args.warm_seconds + number * args.bin_seconds
        cells = "".join(f"{'' if one is None else one:>11}" for one in row)
        print(f"{first:>9}{cells}")
    lag, answer = result["lag_seconds"], result["answer_seconds"]
    print(
        f"lag from event to answer: {lag['p50']} s, 99 %: {lag['p99']} s, of "
        f"which {args.window} s wait for clicks; {result['versions']} versions"
    )
    print(
        f"{result['answers']} answers, in {1e3 * answer['p50']:.1f} ms, 99 %: "
        f"{1e3 * answer['p99']:.1f} ms; {result['wrong']} wrong, "
        f"{result['failed']} failed"
    )
    print(
        f"{result['trained']} of {result['events']} events trained, "
        f"{result['joined']} with a click, {result['late']} clicks too late"
    )
    print(
        "cores: "
        + ", ".join(f"{role} {used}" for role, used in result["cores"].items())
    )


def plot(result, args, path):
    """Draws the AUC over time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    labels = {
        FRESH: f"every {args.point_seconds:g} s",
        ONCE: "never renewed",
        **{f"every-{n}": f"every {n} s" for n in args.every},
    }
    for name, values in result["auc"].items():
        times = args.warm_seconds + args.bin_seconds * (
            np.arange(len(values)) + 0.5
        )
        axes.plot(times, values, marker=".", label=labels[name])
    axes.set(xlabel="seconds", ylabel="AUC")
    axes.grid(alpha=0.3)
    axes.legend(title="model renewed")
    figure.savefig(path, dpi=110)


def main():
    args = parse_arguments()
    # An end by a signal is one like any other: nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="tf_ext_stream_") as name:
        result = run(pathlib.Path(name), args)
    print_result(result, args)
    if args.plot:
        plot(result, args, args.plot)
    print(json.dumps(result))
    lost = result["events"] - result["trained"] + result["not_served"]
    sys.exit(bool(result["wrong"] or result["failed"] or lost))


if __name__ == "__main__":
    main()
