"""When an application was first seen, as far as its warehouse records it."""

from kstreams_assets.layout import Warehouse

_seen: dict[tuple[str, str], int] = {}
"""By warehouse and application. Once something is recorded, it does not change in a process."""


def first_recorded_ms(warehouse: Warehouse, application_id: str) -> int | None:
    """The earliest recovery point or recorded window (epoch ms), None while there is none.

    Points are dropped by and by; the row of the first window stays.

    Raises:
        NewerLayoutError: A newer release wrote a table.
        WarehouseError: The warehouse cannot be read.
    """
    from kstreams_assets.warehouse.ledger import Ledger
    from kstreams_assets.warehouse.points import RecoveryPointTable

    key = str(warehouse.root), application_id
    if key not in _seen:
        points = RecoveryPointTable(warehouse).instants(application_id)
        found = [instant.effective_at_ms for instant in points]
        window_ms = Ledger(warehouse, application_id).first_start_ms()
        found += [] if window_ms is None else [window_ms]
        if not found:
            return None
        _seen[key] = min(found)
    return _seen[key]
