"""Public forms of the results of expire, copy and verify. Pure."""

from typing import Final

from kstreams_assets.checks import Finding
from kstreams_assets.model.damage import DAMAGE, Damage
from kstreams_assets.model.governance_report import FINDING
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.public_form import DAGSTER, JSON, TABLE, Form, Seconds, Timestamp, Value, only
from kstreams_assets.upkeep.copy import CopyResult
from kstreams_assets.upkeep.expire import Change, ExpirePlan, ExpireResult, TopicChange, TopicResult
from kstreams_assets.upkeep.verify import Verification

_WORDS: Final = {
    Change.DROP: "deleted; no kept point needs them",
    Change.COMPACT: "compacted; the last record of each key is kept",
    Change.JOIN: "merged; all records are kept",
}

LINE: Final = Form(
    tuple,
    Value("kept_by", of=lambda item: item[0], heading="kept by"),
    Value("points", int, of=lambda item: item[1]),
)
_SNAPSHOT: Final = Form(Snapshot, "store window=window.key")
TOPIC_CHANGE: Final = Form(
    TopicChange,
    "topic what",
    Value("from", of=lambda change: change.windows[0].key),
    Value("to", of=lambda change: change.windows[-1].key),
    Value("windows", of=lambda change: len(change.windows)),
    "records bytes",
    Value("meaning", of=lambda c: _WORDS[c.what], heading="result", where=TABLE),
)
TOPIC_RESULT: Final = Form(
    TopicResult,
    "topic",
    Value("what", text="drop, fold (the last record of each key is kept) or join"),
    Value("window", heading="as"),
    "windows",
    Value("records_before", heading="records"),
    Value("records_after", heading="records left"),
    Value("bytes_before", heading="bytes"),
    Value("bytes_after", heading="bytes left"),
)
EXPIRE_PLAN: Final = Form(
    ExpirePlan,
    *only(
        JSON,
        "application_id kept kept_by_line=by_line",
        Value("going", of=lambda plan: sorted(plan.expiring)),
        Value("snapshots_going", of="snapshots", form=_SNAPSHOT),
        Value("windows", of="changes", form=TOPIC_CHANGE),
        "waits notes",
    ),
    *only(
        DAGSTER,
        Value("points_kept", of=lambda plan: len(plan.kept)),
        Value("points_gone", of=lambda plan: len(plan.expiring)),
        Value("points_by_line", of=lambda plan: [*plan.by_line.items()], form=LINE),
        Value("notes", of=lambda plan: " ".join(filter(None, (*plan.notes, plan.waits))) or None),
    ),
)
EXPIRE_RESULT: Final = Form(
    ExpireResult,
    *only(DAGSTER, *EXPIRE_PLAN.part("plan"), Value("windows", of="topics", form=TOPIC_RESULT)),
    *only(
        JSON,
        "application_id=plan.application_id kept_by_line=plan.by_line",
        Value("points_kept", of=lambda done: len(done.plan.kept)),
        Value("points_gone", of=lambda done: len(done.plan.expiring)),
        Value("topics", form=TOPIC_RESULT),
        "waits=plan.waits notes=plan.notes",
    ),
    "bytes_freed",
    Value("took_s", Seconds),
)

_LACKING: Final = Form(Damage, "table file window topic partition problem")
COPY: Final = Form(
    CopyResult,
    *only(JSON, "source to tables"),
    "files_copied=files bytes_copied=bytes files_there=there",
    *only(JSON, Value("finished_at", Timestamp, "finished_at_ms")),
    Value("took_s", Seconds),
    *only(JSON, Value("lacking", form=_LACKING)),
)
_ROWS: Final = 200


def _findings(found: Verification) -> list[Finding] | None:
    return [damage.finding for damage in found.damages[:_ROWS]] or None


VERIFICATION: Final = Form(
    Verification,
    *only(JSON, "application_id sound"),
    "kind sample",
    *only(JSON, Value("verified_at", Timestamp, "began_at_ms"), "took_ms files bytes"),
    *only(
        DAGSTER,
        "files_read=files bytes_read=bytes",
        Value("took_s", of=lambda found: found.took_ms / 1000),
        Value("damages", of=lambda found: len(found.damages)),
        Value("errors", of=lambda found: len(found.errors)),
        Value("not_recorded", of=lambda found: found.unrecorded or None),
        Value("findings", of=_findings, form=FINDING),
    ),
    Value("every_file_read_since", Timestamp, of="covered_since_ms"),
    *only(
        JSON,
        Value("recorded", of=lambda found: not found.unrecorded),
        Value("damages", form=DAMAGE),
    ),
)
