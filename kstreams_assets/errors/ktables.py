"""KTables: snapshots, and what is asked of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from kstreams_assets.errors.base import KStreamsAssetsError


class KTableError(KStreamsAssetsError):
    """A snapshot of a state store could not be made or read."""


class KTableWindowError(KTableError):
    """A snapshot cannot be made for a window: it, or one that it needs, is not backed up."""

    def __init__(self, *, store: str, topic: str, window: str, reason: str) -> None:
        super().__init__(
            f"There can be no snapshot of store {store} for window {window}: {reason.rstrip('.')}.",
            remedy="Back up the windows that are missing, then make the snapshot again.",
        )
        self.store = store
        self.topic = topic
        self.window = window
        self.reason = reason


class KTableColumnsError(KTableError):
    """A table has columns that the store, as it is declared now, cannot be written to.

    `columns` says of each what the table has and what is to be written.
    """

    def __init__(self, *, store: str, table: Path, columns: Mapping[str, tuple[str, str]]) -> None:
        self.store = store
        self.table = table
        self.columns = dict(columns)
        listed = "; ".join(
            f"{name} is {there} there and {wanted} now" for name, (there, wanted) in columns.items()
        )
        super().__init__(
            f"The table of store {store} has other columns than are declared now: {listed}.",
            remedy=f"Put the declaration back, or remove the folder {table} and make its snapshots"
            " anew: the backup has everything that is needed.",
        )


class KTableJobError(KTableError):
    """Spark could not make a snapshot."""

    def __init__(self, *, store: str, window: str, reason: str) -> None:
        super().__init__(
            f"The snapshot of store {store} for window {window} could not be made: {reason}.",
            remedy="The table is as it was; see the log of the run, mend the cause and try again.",
        )
        self.store = store
        self.window = window
        self.reason = reason


class UnknownStoreError(KTableError):
    """The application has no store of this name, or none with a table."""

    def __init__(
        self,
        *,
        application_id: str,
        store: str,
        known: Iterable[str],
        near: Iterable[str] = (),
        why: str = "",
    ) -> None:
        self.application_id = application_id
        self.store = store
        self.known = tuple(known)
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"Store {store!r} of {application_id} has no table: {why}."
            if why
            else f"{application_id} has no store {store!r}{hint}.",
            remedy=f"Its stores are: {', '.join(self.known) or 'none'}.",
        )


class NoSnapshotError(KTableError):
    """No snapshot of a store was made at or before a time.

    `windows` are those that have one, with the time of their recovery point, oldest first.
    """

    def __init__(
        self,
        *,
        application_id: str,
        store: str,
        as_of: str | None,
        windows: Iterable[tuple[str, str]],
    ) -> None:
        self.application_id = application_id
        self.store = store
        self.as_of = as_of
        self.windows = tuple(windows)
        until = "" if as_of is None else f" as of {as_of} or earlier"
        there = "there is none at all"
        if self.windows:
            key, taken_at = self.windows[0]
            there = f"the oldest of {len(self.windows)} is that of window {key} ({taken_at})"
        super().__init__(
            f"Store {store!r} of {application_id} has no snapshot{until}: {there}.",
            remedy="Make one of a window that is backed up: kstreams-assets ktables make --app"
            f" defs.yaml --store {store} --window WINDOW (kstreams-assets windows lists them).",
        )


class KeyNotUnderstoodError(KTableError):
    """A text that cannot be a key of the store."""

    def __init__(self, *, key: str, expected: str) -> None:
        super().__init__(
            f"{key!r} is not a key of this store.",
            remedy=f"Give {expected}; or the raw bytes with --key-hex.",
        )
        self.key = key


class KeyNotInStoreError(KTableError):
    """The store did not hold the key."""

    def __init__(
        self, *, store: str, key: str, window: str, taken_at: str, some_keys: Iterable[str]
    ) -> None:
        self.store = store
        self.key = key
        self.window = window
        self.some_keys = tuple(some_keys)
        there = f" It holds, for example, {', '.join(self.some_keys)}." if self.some_keys else ""
        super().__init__(
            f"Store {store!r} holds no key {key} in window {window} (recovery point of"
            f" {taken_at}).{there}",
            remedy="Try another time, or --history for all windows.",
        )
