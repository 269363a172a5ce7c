# SPDX-License-Identifier: Apache-2.0
"""Malformed records: how many there are, where, and when there are too many."""

import collections
import contextlib
import logging
import re
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext._checks import is_finite, refuse

_LOG = logging.getLogger("tf_ext")
# Malformed records that are logged, each on a line.
_LOGGED = 10
# A share is that of at least so many records until all have been read.
FEWEST_RECORDS = 1000
# The one block of a partition of a stream.
_OF_STREAM = -1


class Malformed(typing.NamedTuple):
    """A record that was left out.

    number: of the line, record or row in the file, from 1; reason: one of a few
    texts.
    """

    number: int
    reason: str


class ReadingError(tf.errors.InvalidArgumentError, ValueError):
    """An error that ends the reading.

    Datasets have errors of TensorFlow's classes only. It is one of them, too,
    for programs that read a dataset as well as give it to `fit`.

    Args:
      message: string.
    """

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)

    def as_text(self) -> str:
        """The class and the message, on one line, for `naming_read_errors`."""
        text = f"{type(self).__name__}: {' '.join(self.message.split())}"
        return text.encode(errors="replace").decode()  # Of paths, too.


class DamagedFileError(ReadingError):
    """A part of a file of unknown size cannot be read."""


class TooManyErrorsError(ReadingError):
    """More records are malformed than `max_errors` allows."""


class SourceError(ReadingError):
    """The source of a stream cannot be read, and will not recover alone."""


class SourceUnavailableError(SourceError):
    """The servers of a source do not answer; they may later.

    A stream that begins asks them again for a minute.
    """


class LostRecordsError(SourceError):
    """A source no longer has the records that a stream has to read next."""


_CLASSES = {
    one.__name__: one
    for one in (
        DamagedFileError,
        TooManyErrorsError,
        SourceError,
        SourceUnavailableError,
        LostRecordsError,
    )
}
# With what TensorFlow writes behind it.
_AS_TEXT = re.compile(
    rf"\b({'|'.join(_CLASSES)}): (.*?)(?:\s*\[\[\{{\{{node | \[Op:|$)",
    re.MULTILINE,
)


def reading_error(text: str, before: str = "") -> ReadingError | None:
    """The error of which another error's message tells; None if of none.

    Args:
      text: string that has `as_text` of it somewhere.
      before: string, which begins its message.
    """
    found = _AS_TEXT.search(text)
    if found is None:
        return None
    return _CLASSES[found[1]](before + found[2])


@contextlib.contextmanager
def naming_read_errors() -> Iterator[None]:
    """Gives the errors of reading their classes, behind a dataset."""
    try:
        yield
    except ReadingError:
        raise
    except tf.errors.InvalidArgumentError as error:
        found = reading_error(error.message)
        if found is None:
            raise
        raise found from None


class ReadErrors:
    r"""Counts of the malformed records that `read` left out.

    Give it to `read`, and to `tf_ext.callbacks.ReadErrorLogs` to see the counts
    in the logs of `fit`. A record counts once however often it is read, so the
    counts do not grow with epochs. The first few malformed records are logged,
    with file and position, by the logger "tf_ext".

    Example:
      >>> import pathlib, tempfile
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "ratings.csv"
      >>> _ = file.write_text("user,score\n1,5\n2,good\n3,4\n")
      >>> schema = tf_ext.data.Schema([
      ...     tf_ext.data.Field("user"), tf_ext.data.Field("score", "float32")])
      >>> errors = tf_ext.data.ReadErrors()
      >>> data = tf_ext.data.read(file, schema, batch_size=8, header=True,
      ...     max_errors=0.5, errors=errors)
      >>> [batch["score"].tolist() for batch in data.as_numpy_iterator()]
      [[5.0, 4.0]]
      >>> errors.records, errors.errors, errors.by_reason()
      (3, 1, {'bad number': 1})
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # {file: {where a block begins: (records, {reason: count})}}
        self._blocks: dict[str, dict[int, tuple[int, dict[str, int]]]] = {}
        self._records = 0
        self._errors = 0

    @property
    def records(self) -> int:
        """The number of records read so far, malformed ones included."""
        return self._records

    @property
    def errors(self) -> int:
        """The number of malformed records among them."""
        return self._errors

    def by_file(self) -> dict[str, dict[str, int]]:
        """Counts of the files that have any: `{file: {reason: count}}`."""
        return {
            file: found["reasons"]
            for file, found in self.state().items()
            if found["reasons"]
        }

    def by_reason(self) -> dict[str, int]:
        """Counts by reason, of all files."""
        total: collections.Counter[str] = collections.Counter()
        for reasons in self.by_file().values():
            total.update(reasons)
        return dict(sorted(total.items()))

    def state(self) -> dict[str, typing.Any]:
        """All counts: `{file: {"records": count, "reasons": {...}}}`."""
        with self._lock:
            files = {f: list(b.values()) for f, b in self._blocks.items()}
        result = {}
        for file, blocks in files.items():
            reasons: collections.Counter[str] = collections.Counter()
            for _, found in blocks:
                reasons.update(found)
            result[file] = {
                "records": sum(records for records, _ in blocks),
                "reasons": dict(sorted(reasons.items())),
            }
        return result

    def add(
        self,
        file: str,
        block: int | None,
        records: int,
        malformed: Sequence[Malformed],
        unit: str = "line",
    ) -> None:
        """Counts the records of a block of a file, unless that was done.

        Args:
          file: string.
          block: int, which block it is; None where each is new, as in streams.
          records: int, its records, malformed ones included.
          malformed: list of Malformed.
          unit: string, what their numbers are those of.
        """
        with self._lock:
            blocks = self._blocks.setdefault(file, {})
            if block is not None and block in blocks:
                return
            reasons = collections.Counter(one.reason for one in malformed)
            total = records
            if block is None:
                block = _OF_STREAM
                known, before_it = blocks.get(block, (0, {}))
                total += known
                reasons.update(before_it)
            blocks[block] = total, dict(reasons)
            before = self._errors
            self._records += records
            self._errors += len(malformed)
        in_order = sorted(malformed)
        for one in in_order[: max(0, _LOGGED - before)]:
            _LOG.warning(
                "Skipped a malformed record: %s, %s %s: %s",
                *(file, unit, one.number, one.reason),
            )
        if before < _LOGGED <= before + len(malformed):
            _LOG.warning("Further malformed records are counted, not logged.")

    def check(self, max_errors: float, at_end: bool = False) -> None:
        """Raises TooManyErrorsError if a share is above `max_errors`.

        Args:
          max_errors: float.
          at_end: bool, whether all records have been read; before, a share is
            that of at least 1,000 records.
        """
        records = (
            self._records if at_end else max(self._records, FEWEST_RECORDS)
        )
        if self._errors <= max_errors * records:
            return
        found = "; ".join(
            f"{file}: {described(reasons)}"
            for file, reasons in list(self.by_file().items())[:3]
        )
        raise TooManyErrorsError(
            f"{self._errors} of the first {self._records} records are "
            f"malformed, a share above max_errors={max_errors}. In the first "
            f"files: {found}. Correct the files or the schema, or allow a "
            "larger share."
        )


def described(reasons: Mapping[str, int]) -> str:
    """Counts by reason as text."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def check_max_errors(owner: str, value: object) -> None:
    """Raises ValueError unless a value is a number from 0 to 1."""
    if not is_finite(value) or not 0 <= value <= 1:
        refuse(owner, "max_errors", "a number from 0 to 1", value)
