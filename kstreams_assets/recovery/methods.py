"""Methods for points of an application that is idle, is stopped, or runs at least once."""

import time
from collections.abc import Sequence

from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.evidence import processing, why_not_exact
from kstreams_assets.recovery.scene import NotTaken, Offsets, Positions, Scene

_REST_S = 1.5
_STABLE_S = 25.0
"""An orphaned transaction is aborted after 10 s plus up to 10 s until the coordinator checks."""
_POLL_S = 0.05
_MOST = 5


def sandwich(scene: Scene) -> Positions | NotTaken:
    """Read offsets, find a time at which nothing is open or written, read the same offsets again.

    At that time every transaction is either complete in the logs or not begun. Since the offsets
    before and after are the same, they belong to it. For exactly-once applications only.
    """
    cluster, written = scene.cluster, scene.written
    found = processing(scene, cluster.high_watermarks(written), scene.committed_offsets())
    if found.uncertainty:
        return NotTaken(found.uncertainty)
    deadline = time.monotonic() + _REST_S
    while True:
        before = scene.committed_offsets()
        first = cluster.high_watermarks(written)
        stable = cluster.last_stable_offsets(written)
        ends = cluster.high_watermarks(written)
        if first == stable == ends and scene.committed_offsets() == before:
            found = processing(scene, ends, before)
            if found.uncertainty:
                return NotTaken(found.uncertainty)
            return Positions(Method.SANDWICH, found.guarantee, ends, before, ends, note=found.note)
        if time.monotonic() > deadline:
            return NotTaken(f"the application was not idle for a moment within {_REST_S:g} s")
        time.sleep(_POLL_S)


def quiesced(scene: Scene) -> Positions | NotTaken:
    """Take the ends if the group is empty and nothing is undecided.

    Exact only if the logs show an exactly-once application. After a kill of an `at_least_once`
    application, changelogs and outputs are ahead of the committed offsets by up to a commit
    interval. After an orderly close they are not, but nothing in Kafka distinguishes the two.
    """
    cluster, written = scene.cluster, scene.written
    blocker = _why_not_empty(scene)
    if blocker:
        return NotTaken(blocker)
    stable = cluster.last_stable_offsets(written)
    committed = scene.committed_offsets()
    ends = cluster.high_watermarks(written)
    if stable != ends:
        return NotTaken("a transaction of the stopped application is undecided")
    blocker = _why_not_empty(scene)
    if blocker:
        return NotTaken(blocker)
    found = processing(scene, ends, committed)
    uncertainty = why_not_exact(scene, committed, ends, found)
    if not uncertainty:
        guarantee = found.restored or Guarantee.EXACT
        return Positions(Method.QUIESCED, guarantee, ends, committed, ends, note=found.note)
    note = (
        f"The group is empty, but {uncertainty}: the logs may be ahead of the committed offsets by"
        " up to one commit interval. The point is exact if the application was closed in an"
        " orderly way, not killed."
    )
    return Positions(Method.QUIESCED, Guarantee.AT_LEAST_ONCE, ends, committed, ends, note=note)


def _why_not_empty(scene: Scene) -> str:
    state = scene.cluster.group_state(scene.group)
    if state is None or state.is_empty:
        return ""
    return f"the group is {state.state} (type {state.type})"


def offsets_first(scene: Scene) -> Positions | NotTaken:
    """Read committed offsets, then ends: a restore loses nothing and may repeat.

    In the other order, the state would miss effects of records below the offsets. Changelogs end
    first: a buffer (suppress, an outer join) deletes what it has emitted, and no input restores
    it, so a deletion without its result would lose the result. Everything below the ends of
    internal topics must be decided, as it is saved with the point: data covered by a
    transaction's offsets may be behind another's open data. All these transactions are the
    application's own, and end within seconds. An output may be held up forever by another
    application's open transaction: its end is taken anyway (own records may be behind that
    transaction), and only the backup of that topic waits until it can be read.
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
    """Return partitions in which a transaction below the ends is open."""
    stable = scene.cluster.last_stable_offsets(partitions)
    return sorted(p for p, offset in stable.items() if offset < ends[p])
