# SPDX-License-Identifier: Apache-2.0
"""Forks of a process behave as processes that were started by themselves."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from unittest import mock

import processes
import pytest
from absl.testing import absltest

from tf_ext.distribute.forked_processes import ForkServer

_NAMED = """
import os, sys
print(__name__, sys.argv, os.getcwd(), os.environ.get("OWN"),
      os.environ.get("CHANGED"),
      os.environ.get("COMMON"), os.getsid(0) == os.getpid())
print("log", file=sys.stderr)
"""


def _environment(folder, **variables):
    # In place of TensorFlow, whose import takes seconds.
    environment = dict(os.environ, PYTHONPATH=str(folder), **variables)
    environment.pop("PYTHONUNBUFFERED", None)
    return environment


class TestCase(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.directory())
        self.output = self.enterContext(tempfile.TemporaryFile())
        self.log = self.enterContext(tempfile.TemporaryFile())

    def directory(self):
        return self.enterContext(tempfile.TemporaryDirectory())

    def server(self, tensorflow=""):
        (self.folder / "tensorflow.py").write_text(tensorflow)
        server = ForkServer(
            _environment(self.folder, COMMON="common", CHANGED="old")
        )
        self.addCleanup(server.close)
        return server

    def start(self, server, program, *arguments, **options):
        # Not one that another fork has yet to read.
        path = pathlib.Path(self.directory(), "program.py")
        path.write_text(program)
        options = {"environment": _environment(self.folder), **options}
        return server.start(
            [path, *arguments], output=self.output, log=self.log, **options
        )

    def printed_by_two(self, server, program):
        for _ in range(2):
            self.start(server, program).wait(60)
        return self.written(self.output).splitlines()

    def written(self, file):
        return os.pread(file.fileno(), 10_000, 0).decode()


class StartTest(TestCase):
    def test_has_its_arguments_folder_and_environment(self):
        folder = pathlib.Path(self.directory())
        server = self.server()
        process = self.start(
            server,
            _NAMED,
            "one",
            environment=_environment(self.folder, OWN="own", CHANGED="new"),
            folder=folder,
        )
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(
            self.written(self.output),
            f"__main__ {process.args} {folder} own new None True\n",
        )
        self.assertEqual(self.written(self.log), "log\n")

    def test_runs_modules(self):
        (self.folder / "named.py").write_text(_NAMED)
        process = self.server().start(
            ["-m", "named", "two"],
            _environment(self.folder, COMMON="common"),
            self.output,
            self.log,
        )
        self.assertEqual(process.wait(60), 0)
        arguments = [str(self.folder / "named.py"), "two"]
        self.assertEqual(
            self.written(self.output),
            f"__main__ {arguments} {os.getcwd()} None None common True\n",
        )

    def test_writes_each_line_at_once(self):
        process = self.start(
            self.server(), "import time\nprint('line')\ntime.sleep(60)"
        )
        self.addCleanup(process.kill)
        processes.wait_until(lambda: self.written(self.output) == "line\n")

    def test_imports_tensorflow_once(self):
        server = self.server("import os\npid = os.getpid()")
        program = "import tensorflow\nprint(tensorflow.pid)"
        first, second = self.printed_by_two(server, program)
        self.assertEqual(first, second)

    def test_draws_other_numbers_in_each(self):
        server = self.server("import numpy.random")
        program = "import numpy as np\nprint(np.random.random())"
        first, second = self.printed_by_two(server, program)
        self.assertNotEqual(first, second)

    def test_has_no_files_of_the_server(self):
        program = """
import os
for file in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{file}"))
    except FileNotFoundError:
        pass  # The folder.
"""
        server = self.server()
        sleeping = self.start(server, "import time\ntime.sleep(60)")
        self.addCleanup(sleeping.kill)
        self.start(server, program).wait(60)
        files = self.written(self.output).splitlines()
        self.assertLen(files, 3)
        self.assertEqual(files[0], os.devnull)


class InterruptTest(TestCase):
    def test_each_start_has_its_own_process(self):
        server = self.server()
        sleep = "import time\ntime.sleep(600)"
        with mock.patch.object(
            server, "_receive", side_effect=KeyboardInterrupt
        ):
            with self.assertRaises(KeyboardInterrupt):
                self.start(server, sleep)
        process = self.start(server, "print('mine')")
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(self.written(self.output), "mine\n")
        # What nobody knows has ended, or ends with the server.
        processes.wait_until(lambda: not self._children(server))
        with mock.patch.object(
            server, "_receive", side_effect=KeyboardInterrupt
        ):
            with self.assertRaises(KeyboardInterrupt):
                self.start(server, sleep)
        # Not after an update, which would end it.
        processes.wait_until(lambda: self._children(server, update=False))
        [pid] = self._children(server, update=False)
        server.close()
        processes.wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"))

    def _children(self, server, update=True):
        pid = server._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        if update:
            server.update()
        return children.read_text().split()


class StatusTest(TestCase):
    def test_is_that_of_the_program(self):
        server = self.server()
        for program, status in {
            "": 0,
            "import sys\nsys.exit(7)": 7,
            "raise SystemExit('why')": 1,
            "1 / 0": 1,
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": -9,
            "import atexit, os\natexit.register(os._exit, 5)": 5,
        }.items():
            with self.subTest(program):
                self.assertEqual(self.start(server, program).wait(60), status)
        log = self.written(self.log)
        self.assertIn("why\n", log)
        self.assertIn("ZeroDivisionError: division by zero\n", log)

    def test_of_several_that_run_at_once(self):
        server = self.server()
        program = "import sys, time\ntime.sleep(60)"
        running = [self.start(server, program) for _ in range(3)]
        self.assertEqual([p.poll() for p in running], [None] * 3)
        with self.assertRaises(subprocess.TimeoutExpired):
            running[0].wait(0.05)
        running[1].send_signal(signal.SIGTERM)
        running[2].kill()
        self.assertEqual(running[2].wait(60), -signal.SIGKILL)
        self.assertEqual(running[1].wait(60), -signal.SIGTERM)
        self.assertIsNone(running[0].poll())
        running[0].kill()
        running[0].wait(60)
        running[0].kill()  # Of one that has ended, nothing.


class EndTest(TestCase):
    def test_ends_when_it_is_closed(self):
        server = self.server()
        self.start(server, "").wait(60)
        pid = server._process.pid
        # An interrupt from the terminal does not reach it.
        self.assertEqual(os.getsid(pid), pid)
        server.close()
        self.assertFalse(processes.is_running(pid))

    @pytest.mark.slow
    def test_ends_with_its_parent(self):
        (self.folder / "tensorflow.py").write_text("")
        program = f"""
import os, signal, tempfile
from tf_ext.distribute.forked_processes import ForkServer
server = ForkServer(dict(os.environ, PYTHONPATH={str(self.folder)!r}))
with tempfile.TemporaryFile() as file:
    server.start(["-m", "this"], dict(os.environ), file, file).wait()
print(server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        parent = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        self.assertEqual(parent.returncode, -signal.SIGKILL)
        processes.wait_until_ended([int(parent.stdout)])

    def test_shows_why_it_cannot_start(self):
        server = self.server("raise ImportError('no such library')")
        for _ in range(2):
            with self.assertRaisesRegex(
                RuntimeError,
                "(?s)^The process that forks others has ended with status 1. "
                "Its log ends with:.*ImportError: no such library",
            ):
                self.start(server, "")

    def test_ends_all_when_it_is_killed(self):
        server = self.server()
        running = self.start(server, "import time\ntime.sleep(60)")
        os.kill(server._process.pid, signal.SIGKILL)
        self.assertEqual(running.wait(60), -signal.SIGKILL)
        processes.wait_until_ended([running.pid])
        with self.assertRaisesRegex(RuntimeError, "has ended with status -9"):
            self.start(server, "")


if __name__ == "__main__":
    absltest.main()
