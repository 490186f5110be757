"""What a plan says about buffers of stream-table joins."""

from kstreams_assets.app.model import Store
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.restore.planner import misread_buffers

BUFFER = Store("priced-Buffer", "shop-priced-Buffer-changelog")
SUMS = Store("sums", "shop-sums-changelog")
FORMATS = {"sums": StoreFormat(), "waits": StoreFormat(kind=StoreKind.JOIN_BUFFER)}
RESTORED = {"shop-priced-Buffer-changelog", "shop-sums-changelog", "shop-waits-changelog"}


def test_a_buffer_is_known_by_its_name_or_its_declared_kind() -> None:
    waits = Store("waits", "shop-waits-changelog")
    notes = [*misread_buffers([BUFFER, SUMS, waits], FORMATS, RESTORED)]
    assert [note.split(" buffers ")[0] for note in notes] == ["Store priced-Buffer", "Store waits"]
    assert "With shop-priced-Buffer-changelog excluded" in notes[0]


def test_nothing_is_said_of_one_whose_log_is_not_restored() -> None:
    unlogged = Store("other-Buffer", None)
    assert [*misread_buffers([BUFFER, unlogged], {}, {"shop-sums-changelog"})] == []


def test_a_store_that_only_has_such_a_name_is_read_as_declared() -> None:
    declared = {"priced-Buffer": StoreFormat()}
    assert [*misread_buffers([BUFFER], declared, RESTORED)] == []
