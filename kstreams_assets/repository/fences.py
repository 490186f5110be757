"""First steps of a new lock holder: earlier holders can no longer commit, leftovers are removed."""

from collections.abc import Sequence
from typing import Any

from deltalake import DeltaTable

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.tables import Lock, written_under
from kstreams_assets.repository.committer import fence, sweep
from kstreams_assets.repository.records import open_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import restore_scope
from kstreams_assets.repository.table import Table, Writer, fence_tables, refuse_newer_tables
from kstreams_assets.store.locks import LockHandle


def put_in_order(repo: Repository, lock: Lock, handle: LockHandle, of: Sequence[str]) -> None:
    """Fence the tables that are written under a lock; see `Repository.writing`.

    The lock is new. If it does not know of writers that only the tables mention (a copied
    warehouse), it gets a higher epoch than theirs. This must happen before records are committed.

    With the application's lock, all tables get the layout of this release, so that no process of an
    earlier one reads or writes at the same time. Raises ConfigurationError, see `writing`.
    """
    warehouse, application_id = repo.warehouse, repo.application_id
    of_lock = written_under(lock)
    if warehouse.state_in is not None and not all(spec.is_state for spec in of_lock):
        # Its locks are in another place, where no other writer of the warehouse looks for them.
        raise ConfigurationError(
            f"This command writes to the warehouse {warehouse.root}, but state_in is"
            f" {warehouse.state_in}: with it, restores, drills and checks only read the warehouse.",
            remedy="Run this command without --state-in, and without state_in in the YAML.",
        )
    records_path, records = warehouse.records(application_id), None
    present: list[tuple[Table[Any], DeltaTable]] = []
    if lock is Lock.APPLICATION:
        records = open_records(records_path, to_write=True)
        present = refuse_newer_tables(warehouse, application_id, repo.known)
    tables = [Table.of(spec, warehouse, application_id, repo.known) for spec in of_lock]
    if tables:
        scope = restore_scope(*of) if lock is Lock.RESTORE else ""
        writer = Writer("" if scope else application_id, handle, scope)
        fence_tables(tables, writer)
        for table, found in present:
            table.upgrade(found)
            table.migrate(found, writer)
    if lock is Lock.APPLICATION:
        sweep(records_path, fence(records_path, records, handle))
