"""How a point is taken of an application that rests, is stopped, or runs at least once."""

import time
from collections.abc import Sequence

from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.evidence import processing, why_not_exact
from kstreams_assets.recovery.scene import NotTaken, Offsets, Positions, Scene

_REST_S = 1.5
_STABLE_S = 25.0
"""An orphaned transaction is aborted after 10 s plus up to 10 s until the coordinator looks."""
_POLL_S = 0.05
_MOST = 5


def sandwich(scene: Scene) -> Positions | NotTaken:
    """Offsets, a moment in which nothing is open or written, the same offsets again.

    At that moment every transaction is wholly in the logs or not begun, and since the offsets
    before and after are the same, they belong to it. For exactly-once applications only.
    """
    cluster, written = scene.cluster, scene.written
    found = processing(scene, cluster.high_watermarks(written), scene.committed_offsets())
    if found.doubt:
        return NotTaken(found.doubt)
    deadline = time.monotonic() + _REST_S
    while True:
        before = scene.committed_offsets()
        first = cluster.high_watermarks(written)
        stable = cluster.last_stable_offsets(written)
        ends = cluster.high_watermarks(written)
        if first == stable == ends and scene.committed_offsets() == before:
            found = processing(scene, ends, before)
            if found.doubt:
                return NotTaken(found.doubt)
            return Positions(Method.SANDWICH, found.guarantee, ends, before, ends, note=found.note)
        if time.monotonic() > deadline:
            return NotTaken(f"the application did not rest for a moment within {_REST_S:g} s")
        time.sleep(_POLL_S)


def quiesced(scene: Scene) -> Positions | NotTaken:
    """The group is empty, and nothing is undecided.

    Exact only where the logs show an exactly-once application. Of an `at_least_once` one that was
    killed, changelogs and outputs run ahead of the committed offsets by up to a commit interval;
    if it was closed in an orderly way they do not, but nothing in Kafka tells the two apart.
    """
    cluster, written = scene.cluster, scene.written
    refusal = _why_not_empty(scene)
    if refusal:
        return NotTaken(refusal)
    stable = cluster.last_stable_offsets(written)
    committed = scene.committed_offsets()
    ends = cluster.high_watermarks(written)
    if stable != ends:
        return NotTaken("a transaction of the stopped application is not decided yet")
    refusal = _why_not_empty(scene)
    if refusal:
        return NotTaken(refusal)
    found = processing(scene, ends, committed)
    doubt = why_not_exact(scene, committed, ends, found)
    if not doubt:
        guarantee = found.restored or Guarantee.EXACT
        return Positions(Method.QUIESCED, guarantee, ends, committed, ends, note=found.note)
    note = (
        f"The group is empty, but {doubt}: the logs may be ahead of the committed offsets by up"
        " to one commit interval. The point is exact if the application was closed in an"
        " orderly way, not killed."
    )
    return Positions(Method.QUIESCED, Guarantee.AT_LEAST_ONCE, ends, committed, ends, note=note)


def _why_not_empty(scene: Scene) -> str:
    state = scene.cluster.group_state(scene.group)
    if state is None or state.is_empty:
        return ""
    return f"the group is {state.state} (type {state.type})"


def offsets_first(scene: Scene) -> Positions | NotTaken:
    """Committed offsets, then ends: a restore loses nothing and may repeat.

    Read the other way round, the state would lack effects of records below the offsets. Changelogs
    end before all else: a buffer (suppress, an outer join) deletes what it has emitted, and no
    input brings that back, so that a deletion without its result would lose the result. Everything
    below the ends of internal topics must be decided, as it is saved with the point: what a
    transaction's offsets cover may lie behind another's open data. All their transactions are the
    application's own, and end within seconds. An output may be held up for ever by somebody else's
    open transaction: its end stands all the same (own records may lie behind that transaction), and
    only the backup of that topic waits until it can be read.
    """
    committed = scene.committed_offsets()
    scene.between("ends")
    ends = dict(scene.cluster.high_watermarks(scene.changelogs))
    ends |= scene.cluster.high_watermarks([p for p in scene.written if p not in ends])
    deadline = time.monotonic() + _STABLE_S
    while behind := _undecided(scene, scene.internal, ends):
        if time.monotonic() > deadline:
            return NotTaken(
                f"{behind[0]} was not decided up to offset {ends[behind[0]]} within"
                f" {_STABLE_S:g} s (a hanging transaction?)"
            )
        time.sleep(_POLL_S)
    notes = [] if committed else ["The application's group has no committed offsets."]
    held_up = _undecided(scene, scene.outputs, ends)
    if held_up:
        notes.append(
            f"A transaction is open in {', '.join(map(str, held_up[:_MOST]))}: the backup of"
            " that topic has to wait until it has ended."
        )
    return Positions(
        Method.OFFSETS_FIRST,
        Guarantee.AT_LEAST_ONCE,
        ends,
        committed,
        scene.cluster.high_watermarks(scene.written),
        note=" ".join(notes),
    )


def _undecided(
    scene: Scene, partitions: Sequence[TopicPartitionId], ends: Offsets
) -> list[TopicPartitionId]:
    """Partitions in which a transaction below the ends is open."""
    stable = scene.cluster.last_stable_offsets(partitions)
    return sorted(p for p, offset in stable.items() if offset < ends[p])
