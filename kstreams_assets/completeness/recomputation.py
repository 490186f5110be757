"""What is declared of a store that counts or sums its inputs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.ktables.store_format import Format


@dataclass(frozen=True, slots=True)
class TopicFormat:
    """How the keys and values of a topic are read."""

    key: Format
    value: Format


@dataclass(frozen=True, slots=True)
class WindowedBy:
    """Tumbling or hopping windows of a recomputed store, in milliseconds."""

    size_ms: int
    advance_ms: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A store of counts and sums, to be recomputed from one input topic.

    `key` is a SQL expression over the view of `source` that gives the store's key, `where` which
    records count. `values` are aggregates, `count(*)` or `sum(...)`, by field of the value; the
    name is empty where the whole value is one number. `through` is the repartition topic between
    the two: its records in flight are not in the store yet. `windowed_by` is set for windowed
    stores. `line` is where it stands in the YAML.
    """

    store: str
    source: str
    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    through: str | None = None
    windowed_by: WindowedBy | None = None
    line: int | None = None
