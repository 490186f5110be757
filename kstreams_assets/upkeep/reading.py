"""Reads stored files and compares their digests: in threads, or in tasks on the engine."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.layout import content_problem
from kstreams_assets.store import ObjectPath, StorePath
from kstreams_assets.texts import bytes_text, duration
from kstreams_assets.warehouse.verifications import Damage
from spark_resources.work import Spark

_BUNDLE_BYTES: Final = 64 * 1024**2
_BUNDLE_FILES: Final = 256
_AHEAD: Final = 4
"""So many bundles wait for their turn."""
_STORE_THREADS: Final = 16
"""A store answers late: meanwhile others are asked."""
_PROGRESS_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class NotedFile:
    """A file with what was noted of it; `damage` is what is told if it is another one."""

    path: StorePath
    size: int
    digest: str
    damage: Damage


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Files that are read one after the other, by their numbers; goes into pickled tasks."""

    first: int
    files: tuple[tuple[StorePath, str], ...]
    bytes: int
    throttle: Throttle | None


def problems_of(
    files: Sequence[NotedFile],
    *,
    throttle: Throttle | None,
    spark: Spark | None,
    log: Callable[[str], None],
) -> list[tuple[NotedFile, str]]:
    """The files that are not the ones that were written, byte for byte, and what is wrong.

    Logs the progress every 10 s. With `spark` its tasks read; else threads of this process.
    """
    bundles = list(_bundles(files, throttle))
    progress = _Progress(len(files), sum(file.size for file in files), log)
    found: list[tuple[int, str]] = []
    if spark is not None and bundles:
        from spark_resources.partition_tasks import run_partition_tasks

        for of_bundle in run_partition_tasks(spark.spark_session, bundles, _read):
            found += of_bundle
    else:
        for bundle, of_bundle in _in_threads(bundles):
            progress.add(len(bundle.files), bundle.bytes)
            found += of_bundle
    return [(files[number], problem) for number, problem in sorted(found)]


def _bundles(files: Sequence[NotedFile], throttle: Throttle | None) -> Iterator[_Bundle]:
    first, size, taken = 0, 0, 0
    for number, file in enumerate(files):
        if taken and (size + file.size > _BUNDLE_BYTES or taken == _BUNDLE_FILES):
            yield _bundle(files, first, number, size, throttle)
            first, size, taken = number, 0, 0
        size, taken = size + file.size, taken + 1
    if taken:
        yield _bundle(files, first, len(files), size, throttle)


def _bundle(
    files: Sequence[NotedFile], first: int, end: int, size: int, throttle: Throttle | None
) -> _Bundle:
    named = tuple((file.path, file.digest) for file in files[first:end])
    return _Bundle(first, named, size, throttle)


def _in_threads(bundles: Sequence[_Bundle]) -> Iterator[tuple[_Bundle, list[tuple[int, str]]]]:
    """Bundles as they are done; few wait at a time, however many there are."""
    rest = iter(bundles)
    in_store = bool(bundles) and isinstance(bundles[0].files[0][0], ObjectPath)
    threads = _STORE_THREADS if in_store else max(2, os.cpu_count() or 2)
    open_: dict[Future[list[tuple[int, str]]], _Bundle] = {}
    with ThreadPoolExecutor(threads) as pool:
        while True:
            for bundle in islice(rest, threads + _AHEAD - len(open_)):
                open_[pool.submit(_read, bundle)] = bundle
            if not open_:
                return
            done, _ = wait(open_, return_when=FIRST_COMPLETED)
            for future in done:
                yield open_.pop(future), future.result()


def _read(bundle: _Bundle) -> list[tuple[int, str]]:
    throttle = bundle.throttle
    pay = None if throttle is None else lambda size: throttle.wait(size, 0)
    found: list[tuple[int, str]] = []
    for number, (path, digest) in enumerate(bundle.files, bundle.first):
        problem = content_problem(path, digest, pay)
        if problem:
            found.append((number, problem))
    return found


class _Progress:
    """What is read and what is left, told now and then."""

    def __init__(self, files: int, size: int, log: Callable[[str], None]) -> None:
        self._files, self._bytes, self._log = files, size, log
        self._read_files = self._read_bytes = 0
        self._began = self._told = time.monotonic()

    def add(self, files: int, size: int) -> None:
        """So much more was read."""
        self._read_files += files
        self._read_bytes += size
        now = time.monotonic()
        if now - self._told < _PROGRESS_S or not self._read_bytes:
            return
        self._told = now
        rate = self._read_bytes / (now - self._began)
        left = round(1000 * (self._bytes - self._read_bytes) / rate)
        self._log(
            f"Read {self._read_files:,} of {self._files:,} files, {bytes_text(self._read_bytes)} of"
            f" {bytes_text(self._bytes)} ({bytes_text(round(rate))}/s); {duration(left)} left."
        )
