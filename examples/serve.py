# SPDX-License-Identifier: Apache-2.0
r"""Trains a model, and serves it while it is trained, in three ways.

Five programs run side by side. One trains the Wide & Deep model of wide_deep.py
on generated data and publishes it again and again. Three serve it over HTTP:
one cannot import tf_ext and loads each version of what `tf_ext.serving.export`
writes; another imports it and follows the recovery points of
`tf_ext.callbacks.TableSnapshot`, so that new rows reach it without a second
copy of the table; the last finds rows in the store into which
`tf_ext.serving.publish` writes, by `tf_ext.serving.Lookup`, and needs no
TensorFlow where tf2onnx is installed. This one keeps asking all of them.

    pip install '.[examples]'
    python serve.py

Each answer is compared with what the trained model itself answered at the step
that the server names. It prints how long answers took, and how many were wrong
or failed: the exit status is 1 if there were any. An answer of the second
server that was computed while rows were being replaced may be of neither step;
such are counted as `between`. The last line on standard output is a JSON
object.
"""

import argparse
import collections
import contextlib
import http.client
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

FOLDER = pathlib.Path(__file__).resolve().parent
ROLES = ("stock", "follow", "lookup")
BATCH_SIZE = 2048  # of wide_deep.py
# What another order of summation may change in a float32 probability.
TOLERANCE = 1e-5
SECONDS_TO_START = 120
SECONDS_TO_CATCH_UP = 60
PAUSE_SECONDS = 0.002

Answer = collections.namedtuple(
    "Answer", ["places", "scores", "steps", "changing", "seconds"]
)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--examples", type=int, default=500_000, help="to train on"
    )
    parser.add_argument(
        "--publications", type=int, default=8, help="while training"
    )
    args = parser.parse_args(arguments)
    if not 1 <= args.publications <= args.examples // BATCH_SIZE:
        parser.error(
            f"--publications={args.publications} must be at least 1, with "
            f"{BATCH_SIZE} examples or more for each"
        )
    return args


@contextlib.contextmanager
def started(program, *arguments):
    """A program that is ended when the context is left."""
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / program), *map(str, arguments)],
        # Servers end when it does, which is when this process does.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def wait_for(condition, seconds, what, trainer):
    """Waits until a function returns something, which it returns.

    Raises:
      RuntimeError: it took too long, or training failed.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if trainer.poll() not in (None, 0):
            raise RuntimeError(f"Training ended with {trainer.returncode}.")
        if time.monotonic() > deadline:
            raise RuntimeError(f"There is no {what} after {seconds} s.")
        time.sleep(0.05)
    return found


def read_port(process):
    """The port that a server listens on, once it can answer."""
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"A server ended with {process.wait()}.")
    return int(line)


class Client(threading.Thread):
    """Asks a server for scores of some samples, again and again.

    Args:
      role: string, what the server is.
      port: int, where it listens.
      samples: dict from features to lists.

    Attributes:
      answers: list of Answer.
      failures: list of strings.
    """

    def __init__(self, role, port, samples):
        super().__init__(name=role)
        self.answers = []
        self.failures = []
        self._port = port
        self._samples = samples
        self._count = len(next(iter(samples.values())))
        self._ended = threading.Event()
        self._random = random.Random(role)

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        while not self._ended.wait(PAUSE_SECONDS):
            try:
                self.answers.append(self._ask(connection))
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()

    def _ask(self, connection):
        places = self._random.sample(
            range(self._count), self._random.randint(1, self._count)
        )
        body = {k: [v[i] for i in places] for k, v in self._samples.items()}
        begin = time.perf_counter()
        connection.request("POST", "/predict", json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        seconds = time.perf_counter() - begin
        if response.status != 200:
            raise ValueError(f"{response.status}: {text!r}")
        answer = json.loads(text)
        return Answer(
            places,
            answer["scores"],
            answer["steps"],
            answer["changing"],
            seconds,
        )

    @property
    def step(self):
        """The step of the newest answer; 0 without any."""
        return self.answers[-1].steps[1] if self.answers else 0

    def stop(self):
        self._ended.set()
        self.join()


def judge(answer, expected):
    """Whether an answer is that of a model that was published.

    Args:
      answer: Answer.
      expected: dict from steps to the scores of all samples.

    Returns:
      "right"; "between", for one that is of neither step while rows were being
      replaced; or "wrong".
    """
    steps = sorted(expected)
    allowed = set(answer.steps)
    if answer.changing:
        # What is being changed to is the next one that was published, or a
        # later one.
        allowed.update(s for s in steps if s > answer.steps[0])
    for step in allowed & set(steps):
        wanted = [expected[step][place] for place in answer.places]
        if len(wanted) == len(answer.scores) and all(
            abs(found - one) <= TOLERANCE
            for found, one in zip(answer.scores, wanted)
        ):
            return "right"
    return "between" if answer.changing else "wrong"


def summarize(client, expected):
    """What is printed of a client, a dict."""
    judged = collections.Counter(
        judge(answer, expected) for answer in client.answers
    )
    times = sorted(answer.seconds for answer in client.answers)
    summary = {
        "answers": len(client.answers),
        "steps": len({answer.steps[1] for answer in client.answers}),
        "between": judged["between"],
        "wrong": judged["wrong"],
        "failed": len(client.failures),
    }
    for percent in (50, 95, 99):
        # The least time that so many are not above.
        place = -(-percent * len(times) // 100) - 1
        summary[f"p{percent}_ms"] = round(1e3 * times[place], 2)
    return summary


def read_answers(path):
    """What the trained model answered: `{step: scores}`."""
    lines = map(json.loads, path.read_text().splitlines())
    return {line["step"]: line["scores"] for line in lines}


def ask_while_training(folder, args):
    """Runs everything; returns the clients, by role."""
    steps = args.examples // BATCH_SIZE // args.publications
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(
            started(
                "serve_training.py",
                folder,
                f"--examples={args.examples}",
                f"--steps={steps}",
            )
        )
        names = ("versions", "points", "store")
        places = {r: folder / n for r, n in zip(ROLES, names)}
        # A folder in a store is a version once this file says so.
        patterns = {"lookup": "versions.json"}
        for role, place in places.items():
            pattern = patterns.get(role, "*[0-9]")
            wait_for(
                lambda place=place, pattern=pattern: any(place.glob(pattern)),
                SECONDS_TO_START,
                place.name,
                trainer,
            )
        servers = {
            role: stack.enter_context(started("serve_http.py", role, path))
            for role, path in places.items()
        }
        samples = json.loads((folder / "samples.json").read_text())
        clients = {
            role: Client(role, read_port(process), samples)
            for role, process in servers.items()
        }
        for client in clients.values():
            client.start()
            stack.callback(client.stop)
        if trainer.wait():
            raise RuntimeError(f"Training ended with {trainer.returncode}.")
        last = max(read_answers(folder / "answers.jsonl"))
        wait_for(
            lambda: all(client.step == last for client in clients.values()),
            SECONDS_TO_CATCH_UP,
            f"answer of step {last}",
            trainer,
        )
        for client in clients.values():
            client.stop()
    return clients


def main():
    args = parse_arguments()
    # An end by a signal is one like any other: nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        clients = ask_while_training(folder, args)
        expected = read_answers(folder / "answers.jsonl")
    result = {
        role: summarize(client, expected) for role, client in clients.items()
    }
    for role, summary in result.items():
        said = ", ".join(f"{key} {value}" for key, value in summary.items())
        print(f"{role}: {said}")
    print(json.dumps(result))
    sys.exit(any(one["wrong"] or one["failed"] for one in result.values()))


if __name__ == "__main__":
    main()
