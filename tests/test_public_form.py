"""What users see of a result follows from one declaration: documents, tables, metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import dagster as dg

from kstreams_assets.orchestration.metadata import metadata, table
from kstreams_assets.public_form import (
    DAGSTER,
    JSON,
    TABLE,
    Form,
    Markdown,
    Rounded,
    Timestamp,
    Value,
    of_kind,
    only,
)


class Kind(StrEnum):
    """One of several."""

    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a result."""

    name: str
    size: int | None = None

    @property
    def half(self) -> float:
        """Not half of it."""
        return (self.size or 0) / 3


@dataclass(frozen=True, slots=True)
class Whole:
    """A result."""

    kind: Kind = Kind.LARGE
    at_ms: int | None = 1_760_000_000_000
    parts: tuple[Part, ...] = (Part("a", 5), Part("b"))
    first: Part = Part("a", 5)
    configs: Mapping[str, Any] = field(default_factory=lambda: {"roles": frozenset({"y", "x"})})

    @property
    def count(self) -> int:
        """How many parts."""
        return len(self.parts)


PART = Form(Part, Value("name", heading="who", text="Its name"), "size")
WHOLE = Form(
    Whole,
    "kind",
    Value("at", Timestamp, of="at_ms"),
    Value("parts", form=PART),
    *only(JSON, "first", "configs"),
    *only(DAGSTER, Value("text", Markdown, of=lambda whole: f"**{whole.count}**")),
    "count",
    Value("half", float, of=lambda whole: whole.count / 3, where=TABLE),
)


def test_a_document_has_plain_values() -> None:
    assert WHOLE.document(Whole()) == {
        "kind": "large",
        "at": "2025-10-09T08:53:20.000+00:00",
        "parts": [{"name": "a", "size": 5}, {"name": "b", "size": None}],
        "first": {"name": "a", "size": 5},
        "configs": {"roles": ["x", "y"]},
        "count": 2,
    }
    assert WHOLE.document(Whole(at_ms=None, parts=()))["parts"] == []


def test_a_table_shows_what_it_names() -> None:
    assert PART.table([Part("a", 5)]) == (["who", "size"], [["a", 5]])
    assert WHOLE.table([Whole(parts=(Part("a"),) * 3)], "half", "kind") == (
        ["half", "kind"],
        [[1.0, "large"]],
    )


def test_metadata_has_types_and_leaves_out_what_is_not_known() -> None:
    found = metadata(WHOLE, Whole(at_ms=None))
    assert found.keys() == {"kind", "parts", "text", "count"}
    assert found["text"] == dg.MetadataValue.md("**2**")
    assert found["count"] == dg.MetadataValue.int(2)
    assert found["kind"] == dg.MetadataValue.text("large")
    assert metadata(WHOLE, Whole())["at"] == dg.MetadataValue.timestamp(1_760_000_000.0)


def test_columns_of_a_table_have_the_types_of_the_class() -> None:
    found = table(PART, [Part("a", 5), Part("b")])
    assert [(c.name, c.type, c.description) for c in found.schema.columns] == [
        ("name", "string", "Its name"),
        ("size", "int", None),
    ]
    assert [dict(record.data) for record in found.records] == [
        {"name": "a", "size": 5},
        {"name": "b", "size": None},
    ]


def test_the_values_of_a_part_are_those_of_the_whole() -> None:
    form = Form(Whole, *PART.part("first"), "count")
    assert form.document(Whole()) == {"name": "a", "size": 5, "count": 2}
    assert [c.type for c in table(form, []).schema.columns] == ["string", "int", "int"]


def test_a_part_that_is_not_there_has_no_values() -> None:
    form = Form(Whole, "size=first.size", *of_kind(Rounded, "half=first.half"))
    assert form.document(Whole(first=Part("c", 5))) == {"size": 5, "half": 1.67}
    nothing = Whole(first=None)  # pyright: ignore[reportArgumentType]
    assert form.document(nothing) == {"size": None, "half": None}
    assert metadata(form, Whole(first=Part("c", 5)))["half"] == dg.MetadataValue.float(1.67)
    assert metadata(form, nothing) == {}
