# SPDX-License-Identifier: Apache-2.0
"""What commands at a terminal have in common."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence, Sized

OK, DAMAGED, FAILED, INTERRUPTED = 0, 1, 2, 130


def new_parser(
    program: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """A parser whose commands say with `set_defaults(run=...)` what to call.

    Args:
      program: string, what the user calls it by.
      description: string.
      epilog: string, printed as it is.
    """
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=16
        ),
    )


def run(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    damage: type[Exception] | tuple[type[Exception], ...],
    failures: tuple[type[Exception], ...],
) -> int:
    """Runs one command.

    Args:
      parser: that of `new_parser`.
      arguments: list of strings, the command line. None: this process's.
      damage: the errors that say that files are damaged.
      failures: other errors that users can do something about.

    Returns:
      int, the status to exit with; errors take one line of standard error.
    """
    options = parser.parse_args(arguments)
    expected: tuple[type[Exception], ...]
    expected = (ModuleNotFoundError, OSError, ValueError, *failures)
    try:
        status: int = options.run(options)
        sys.stdout.flush()  # Here, where a pipe that is closed is expected.
        return status
    except damage as error:
        return fail(parser.prog, error, DAMAGED)
    except BrokenPipeError:
        # `... | head` has seen enough. The interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except expected as error:
        return fail(parser.prog, error, FAILED)
    except MemoryError:
        return fail(parser.prog, "there is not enough memory.", FAILED)
    except KeyboardInterrupt:
        message = "interrupted; nothing was written."
        return fail(parser.prog, message, INTERRUPTED)


def fail(program: str, error: object, status: int) -> int:
    """Prints an error in one line; returns the status."""
    text = " ".join(str(error).split())
    print(f"{program}: error: {text}", file=sys.stderr)
    return status


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """A function that is called with bytes, and moves a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import console, progress

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda size: bar.advance(task, size)


def print_columns(rows: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    """Prints rows of texts in columns.

    Args:
      rows: list of tuples of strings, the first one being the headings.
      left: list of ints, columns that are aligned to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        print("  ".join(cells).rstrip())


def count(things: Sized, noun: str) -> str:
    """Such as "1 file" or "1,000 files"."""
    n = len(things)
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def size(size: float) -> str:
    """Bytes in words, such as "1.4 MB"."""
    if size < 1000:
        return f"{size} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"
