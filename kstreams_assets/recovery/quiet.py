"""Methods for an application that rests for a moment, or is stopped; and the last resort."""

import time
from dataclasses import dataclass

from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.kafka.positions import OffsetRange
from kstreams_assets.recovery.method import (
    NotTaken,
    Offsets,
    Positions,
    Scene,
    committed_offsets,
)
from kstreams_assets.recovery.point import Guarantee, Method

_READ_S = 15.0
_REST_S = 1.5
_STABLE_S = 25.0
"""An orphaned transaction is aborted after 10 s plus up to 10 s until the coordinator looks."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SandwichMethod:
    """Offsets, a moment in which nothing is open or written, the same offsets again.

    At that moment every transaction is wholly in the logs or not begun, and since the offsets
    before and after are the same, they belong to it. For exactly-once applications only.
    """

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        doubt = why_not_exactly_once(self.scene, cluster.high_watermarks(written))
        if doubt:
            return NotTaken(doubt)
        deadline = time.monotonic() + _REST_S
        while True:
            before = committed_offsets(self.scene)
            first = cluster.high_watermarks(written)
            stable = cluster.last_stable_offsets(written)
            ends = cluster.high_watermarks(written)
            if first == stable == ends and committed_offsets(self.scene) == before:
                doubt = why_not_exactly_once(self.scene, ends)
                if doubt:
                    return NotTaken(doubt)
                return Positions(Method.SANDWICH, Guarantee.EXACT, ends, before, ends)
            if time.monotonic() > deadline:
                return NotTaken(f"the application did not rest for a moment within {_REST_S:g} s")
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class QuiescedMethod:
    """The group is empty, and nothing is undecided."""

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        refusal = self._not_empty()
        if refusal:
            return NotTaken(refusal)
        stable = cluster.last_stable_offsets(written)
        committed = committed_offsets(self.scene)
        ends = cluster.high_watermarks(written)
        if stable != ends:
            return NotTaken("a transaction of the stopped application is not decided yet")
        refusal = self._not_empty()
        if refusal:
            return NotTaken(refusal)
        if not committed and any(ends.values()):
            return NotTaken("the group has no committed offsets, although its topics hold records")
        note = (
            "The group is empty. What an at_least_once application would repeat after an unclean"
            " stop, it repeats after a restore too."
        )
        return Positions(Method.QUIESCED, Guarantee.EXACT, ends, committed, ends, note=note)

    def _not_empty(self) -> str:
        state = self.scene.cluster.group_state(self.scene.group)
        if state is None or state.is_empty:
            return ""
        return f"the group is {state.state} (type {state.type})"


@dataclass(frozen=True, slots=True)
class OffsetsFirstMethod:
    """Committed offsets, then ends: a restore loses nothing and may repeat.

    Read the other way round, the state would lack effects of records below the offsets. Everything
    below the ends must be decided: what a transaction's offsets cover may lie behind another's
    open data.
    """

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        committed = committed_offsets(self.scene)
        self.scene.between("ends")
        ends = cluster.high_watermarks(written)
        deadline = time.monotonic() + _STABLE_S
        while behind := [p for p, o in cluster.last_stable_offsets(written).items() if o < ends[p]]:
            if time.monotonic() > deadline:
                return NotTaken(
                    f"{behind[0]} was not decided up to offset {ends[behind[0]]} within"
                    f" {_STABLE_S:g} s (a hanging transaction?)"
                )
            time.sleep(_POLL_S)
        note = "" if committed else "The application's group has no committed offsets."
        return Positions(
            Method.OFFSETS_FIRST,
            Guarantee.AT_LEAST_ONCE,
            ends,
            committed,
            cluster.high_watermarks(written),
            note=note,
        )


def why_not_exactly_once(scene: Scene, ends: Offsets) -> str:
    """Why the newest batches of internal topics do not show an exactly-once application.

    Empty when every one was written in a transaction. An at_least_once application commits offsets
    long after its changelogs, so that the same offsets twice prove nothing.
    """
    internal = scene.standing.internal
    starts = scene.cluster.log_start_offsets(internal)
    newest = {p: OffsetRange(ends[p] - 1, ends[p]) for p in internal if ends[p] > starts[p]}
    if not newest:
        return "no internal topic holds a record that shows the processing guarantee"
    try:
        raw = scene.reader.read(newest, deadline_s=_READ_S)
    except AuthorizationFailedError as error:
        return error.problem.rstrip(".")
    batches = {p: one.batches[-1].header for p, one in raw.items() if one.batches}
    if not batches:
        return "compaction left no record that shows the processing guarantee"
    plain = [p for p, batch in batches.items() if not batch.is_transactional]
    if plain:
        return f"{plain[0]} is written without transactions (processing.guarantee at_least_once)"
    return ""
