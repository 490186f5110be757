"""What Spark raises, as one error without the Java stack."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_FAILURES: Final = (PySparkException, Py4JError)

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_FIRST = re.compile(
    r"^(?:: |.*Lost task .*?\): )((?:[\w$]+\.)+\w*(?:Exception|Error): .+)$", re.MULTILINE
)
"""What py4j, or the driver, names before its causes."""
_EXCEPTION = re.compile(r"^\s*((?:[\w$]+\.)+\w*(?:Exception|Error): .+)$", re.MULTILINE)
_PYTHON = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Exception|Error): .+)$", re.MULTILINE)
_TELLING = ("org.apache.kafka.", "org.apache.spark.sql.kafka010.", "org.apache.spark.sql.delta.")


class SparkJobError(RuntimeError):
    """A Spark job failed; the text is its innermost cause, without the Java stack."""


@contextmanager
def spark_failures() -> Iterator[None]:
    """Failures of Spark in the block as SparkJobError."""
    try:
        yield
    except SPARK_FAILURES as error:
        raise SparkJobError(innermost_cause(str(error))) from error


class _Kept(Protocol):
    def unpersist(self) -> object: ...


def free(rows: _Kept) -> None:
    """Drop what was kept of these rows; if Spark cannot, it has nothing of them or is gone."""
    with suppress(*SPARK_FAILURES):
        rows.unpersist()


def innermost_cause(text: str) -> str:
    """The innermost cause that Delta names, else the innermost.

    Below those lie Java's own (`ArithmeticException: long overflow`), which say less.
    """
    causes = [*_FIRST.findall(text), *_CAUSE.findall(text)] or _EXCEPTION.findall(text)
    if _PYTHON in (causes[-1] if causes else text):
        causes = _PYTHON_ERROR.findall(text) or causes
    if not causes:
        return text.strip().splitlines()[0]
    telling = [cause for cause in causes if cause.startswith(_TELLING)]
    package_and_class, _, message = (telling or causes)[-1].strip().partition(":")
    return f"{package_and_class.rpartition('.')[2]}:{message}" if message else package_and_class
