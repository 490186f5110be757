"""The public forms of backups: windows with their checks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.backup.amounts import Estimate, TopicAmount
from kstreams_assets.backup.requests import WindowStatus
from kstreams_assets.backup.result import TopicBackup, UnreadTopic, WindowBackup
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.checks import EVALUATION, Evaluation, short_text
from kstreams_assets.model.damage import Damage
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Gap, SpanResult
from kstreams_assets.public_form import DAGSTER, JSON, TABLE, Form, Value, only
from kstreams_assets.settings import ApplicationSettings


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic in a window, with its checks."""

    window: WindowBackup
    backup: TopicBackup
    checks: tuple[Evaluation, ...]

    @property
    def note(self) -> str:
        """Why the topic is empty, for readers who expect records."""
        if self.window.note or self.backup.spans:
            return self.window.note
        return "No recovery point before the end of this window knew the topic."

    @property
    def is_empty(self) -> bool:
        """Whether the topic has no records and nothing else to report."""
        has_offsets = self.backup.records or self.backup.missing_offsets
        return not has_offsets and not any(check.is_red for check in self.checks)


@dataclass(frozen=True, slots=True)
class WindowReport:
    """A window with the checks of its topics, including topics that could not be read."""

    window: WindowBackup
    checks: tuple[Evaluation, ...]

    @classmethod
    def of(cls, window: WindowBackup, application: StreamsApplication) -> Self:
        """Evaluate the checks of a window."""
        return cls(window, tuple(evaluate(window, application)))

    @property
    def topics(self) -> list[TopicReport]:
        """The topics that were backed up."""
        return [
            TopicReport(
                self.window, topic, tuple(c for c in self.checks if c.subject == topic.topic)
            )
            for topic in self.window.topics
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the window has no records and nothing else to report."""
        return all(topic.is_empty for topic in self.topics)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The windows of a run, and `late` those of runs that ended before they could report them."""

    settings: ApplicationSettings
    windows: Sequence[WindowReport] = ()
    late: Mapping[str, Sequence[WindowReport]] = field(default_factory=dict)

    @property
    def every_window(self) -> list[WindowReport]:
        """The windows of all these runs."""
        return [*chain.from_iterable(self.late.values()), *self.windows]

    @property
    def checks(self) -> list[Evaluation]:
        """The checks of all windows."""
        return [check for window in self.every_window for check in window.checks]

    @property
    def passed(self) -> bool:
        """Whether no check is red."""
        return not any(check.is_red for check in self.checks)


@dataclass(frozen=True, slots=True)
class ListedWindow:
    """A closed window with its ledger rows and damages."""

    status: WindowStatus
    entries: Sequence[LedgerEntry]
    damages: Sequence[Damage]

    @property
    def state(self) -> str:
        """The state of the window, in a word or two."""
        if self.damages:
            return "damaged"
        if self.status.is_due:
            return "due"
        return "no point" if self.status.without_point else "done"


_GAP: Final = Form(Gap, "cause start end offsets")
_SPAN: Final = Form(
    SpanResult,
    "partition=partition.partition",
    Value("start", of="plan.start", text="First offset of the window"),
    Value("end", of="plan.end", text="Exclusive end"),
    "records=content.records",
    *only(
        DAGSTER,
        Value("bytes", of="content.bytes", text="Uncompressed keys, values and headers"),
        "tombstones=content.tombstones",
        Value(
            "gaps",
            of=lambda span: "; ".join(gap.describe() for gap in span.gaps),
            text="Offsets without a record, and why",
        ),
    ),
    *only(JSON, "kept", Value("gaps", form=_GAP)),
)
TOPIC: Final = Form(
    TopicReport,
    Value("window", of="window.window.key", where=TABLE),
    *only(JSON, "topic=backup.topic role=backup.role"),
    *only(DAGSTER, "dagster/partition_row_count=backup.records"),
    "records=backup.records bytes=backup.bytes stored_bytes=backup.stored_bytes",
    "tombstones=backup.tombstones",
    Value("missing_offsets", of="backup.missing_offsets", heading="missing offsets"),
    *only(
        DAGSTER,
        Value(
            "odd_timestamps",
            of=lambda t: sum(s.content.non_positive_timestamps for s in t.backup.spans),
        ),
        "duration_s=backup.duration_s",
    ),
    "delta_version=backup.delta_version executor=backup.executor",
    *only(
        DAGSTER,
        Value("recovery_point", of=lambda topic: topic.backup.recovery_point_id or None),
        Value("offsets", of=lambda topic: topic.backup.spans or None, form=_SPAN),
        Value("note", of=lambda topic: topic.note or None),
    ),
    *only(
        JSON,
        Value("spans", of="backup.spans", form=_SPAN),
        Value("checks", form=EVALUATION),
    ),
    Value("verdict", of=lambda topic: short_text(topic.checks), heading="checks", where=TABLE),
)
WINDOW: Final = Form(
    WindowReport,
    "window=window.window.key recovery_point=window.recovery_point_id",
    Value("backed_up", of=lambda report: report.window.has_point and not report.window.unread),
    "note=window.note",
    Value("not_backed_up", of="window.unread", form=Form(UnreadTopic, "topic explanation=reason")),
    Value("topics", form=TOPIC),
)
_RUN: Final = Form(
    tuple,
    Value("run", of=lambda item: item[0]),
    Value("windows", of=lambda item: item[1], form=WINDOW),
)
BACKUP: Final = Form(
    BackupReport,
    "application_id=settings.application_id",
    Value("warehouse", of=lambda report: str(report.settings.warehouse.root)),
    "passed",
    Value("windows", form=WINDOW),
    Value("ended_early", of=lambda report: [*report.late.items()], form=_RUN),
)
AMOUNT: Final = Form(
    TopicAmount,
    "topic",
    Value("offsets", heading="offsets to read"),
    Value("bytes", heading="bytes, as Kafka stores them"),
)
ESTIMATE: Final = Form(
    Estimate,
    "application_id windows offsets bytes",
    Value("bytes_per_second", of=lambda found: found.pace and found.pace.bytes_per_s),
    "seconds=takes_s",
    Value("topics", form=AMOUNT),
)
LISTED: Final = Form(
    ListedWindow,
    "window=status.window.key state points=status.points",
    Value("topics", of=lambda listed: len(listed.status.done)),
    Value("records", of=lambda listed: sum(e.result.content.records for e in listed.entries)),
    Value("bytes", of=lambda listed: sum(e.result.content.bytes for e in listed.entries)),
    Value("lost", of=lambda listed: sum(len(e.result.losses) for e in listed.entries)),
    "missing_topics=status.missing",
    Value("damaged", of=lambda listed: [str(damage) for damage in listed.damages]),
)
