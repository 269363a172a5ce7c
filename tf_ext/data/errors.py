# SPDX-License-Identifier: Apache-2.0
"""Malformed records: how many there are, where, and when there are too many."""

import collections
import contextlib
import itertools
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
    in the logs of `fit`. A record counts once however often a dataset is read,
    so the counts do not grow with epochs; those of several datasets are added.
    The first few malformed records are logged, with file and position, by the
    logger "tf_ext".

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
        # {file: (records, {reason: count})}
        self._files: dict[str, tuple[int, collections.Counter[str]]] = {}
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
            files = dict(self._files)
        return {
            file: {"records": records, "reasons": dict(sorted(reasons.items()))}
            for file, (records, reasons) in files.items()
        }

    def add(
        self,
        file: str,
        records: int,
        malformed: Sequence[Malformed],
        unit: str = "line",
    ) -> None:
        """Counts records of a file.

        Args:
          file: string.
          records: int, their number, malformed ones included.
          malformed: list of Malformed, in the order that they are logged in.
          unit: string, what their numbers are those of.
        """
        reasons = collections.Counter(one.reason for one in malformed)
        with self._lock:
            known, before_it = self._files.get(file, (0, collections.Counter()))
            self._files[file] = known + records, before_it + reasons
            before = self._errors
            self._records += records
            self._errors += len(malformed)
        for one in malformed[: max(0, _LOGGED - before)]:
            _LOG.warning(
                "Skipped a malformed record: %s, %s %s: %s",
                *(file, unit, one.number, one.reason),
            )
        if before < _LOGGED <= before + len(malformed):
            _LOG.warning("Further malformed records are counted, not logged.")


class BlockErrors:
    """Malformed records of a dataset, which is read in blocks of its files.

    Args:
      errors: ReadErrors, to which each block is added once. It may have those
        of other datasets, of files of the same names.
      max_errors: float, the greatest share of malformed records.
    """

    def __init__(self, errors: ReadErrors, max_errors: float) -> None:
        self._errors = errors
        self._max_errors = max_errors
        self._lock = threading.Lock()
        self._blocks: set[tuple[str, int]] = set()
        self._records = self._malformed = 0
        # {file: {reason: count}}
        self._reasons: dict[str, collections.Counter[str]] = {}

    def add(
        self,
        file: str,
        block: int,
        records: int,
        malformed: Sequence[Malformed],
        unit: str,
    ) -> None:
        """Counts the records of a block, unless that was done, and checks.

        Args:
          file: string.
          block: int, which block of the file it is.
          records: int, its records, malformed ones included.
          malformed: list of Malformed.
          unit: string, what their numbers are those of.

        Raises:
          TooManyErrorsError: of at least 1,000 records.
        """
        with self._lock:
            is_new = (file, block) not in self._blocks
            if is_new:
                self._blocks.add((file, block))
                self._records += records
                self._malformed += len(malformed)
            if is_new and malformed:
                self._reasons.setdefault(file, collections.Counter()).update(
                    one.reason for one in malformed
                )
        if is_new:
            self._errors.add(file, records, sorted(malformed), unit)
        self.check(FEWEST_RECORDS)

    def check(self, fewest: int = 0) -> None:
        """Raises TooManyErrorsError if a share is above `max_errors`.

        Args:
          fewest: int, the fewest records that a share is one of.
        """
        with self._lock:
            errors, records = self._malformed, self._records
            files = [*itertools.islice(self._reasons.items(), 3)]
        if errors <= self._max_errors * max(records, fewest):
            return
        found = "; ".join(
            f"{file}: {described(dict(reasons))}" for file, reasons in files
        )
        raise TooManyErrorsError(
            f"{errors} of the first {records} records are malformed, a share "
            f"above max_errors={self._max_errors}. In the first files: "
            f"{found}. Correct the files or the schema, or allow a larger "
            "share."
        )


def described(reasons: Mapping[str, int]) -> str:
    """Counts by reason as text."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def check_max_errors(owner: str, value: object) -> None:
    """Raises ValueError unless a value is a number from 0 to 1."""
    if not is_finite(value) or not 0 <= value <= 1:
        refuse(owner, "max_errors", "a number from 0 to 1", value)
