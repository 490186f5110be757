"""Cuts of applications whose clients keep one producer epoch for many transactions.

Times are milliseconds on the brokers' clocks; each transaction is prepared, writes its markers and
completes within ten of them.
"""

from collections.abc import Sequence

from kstreams_assets.offsets import OffsetRange
from kstreams_assets.recovery.cut import Blocker, Cut, Need, Sample, decide
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch
from tests.recovery.logs import CHANGELOG, INPUT, OFFSETS, OUTPUT, REPARTITION, Logs, Tx, older

OLD = older(1)


def _cut(sample: Sample) -> Cut:
    decision = decide(sample)
    assert isinstance(decision, Cut), decision
    return decision


def _blocker(sample: Sample) -> Blocker:
    decision = decide(sample)
    assert isinstance(decision, Blocker), decision
    return decision


def _three_transactions() -> tuple[Logs, Sequence[EndedTransaction]]:
    """At 10, 20 and 30 ms, each with two records in the changelog; the last one's end is open."""
    logs, history = Logs(), []
    for at_ms in (10, 20, 30):
        logs.changelog.data(OLD, 2)
        logs.offsets.offsets(OLD, {INPUT: at_ms})
        logs.offsets.commit(OLD, at_ms + 1)
        logs.changelog.commit(OLD, at_ms + 2)
        history.append(OLD.ended(CHANGELOG, OFFSETS, prepared_ms=at_ms, completed_ms=at_ms + 5))
    return logs, history


def test_their_history_is_asked_for() -> None:
    logs, _ = _three_transactions()
    blocker = _blocker(logs.sample())
    assert blocker.need is Need.HISTORY
    assert blocker.producers == {ProducerEpoch(1, 0)}


def test_the_end_of_the_offsets_topic_tells_them_apart() -> None:
    logs, history = _three_transactions()
    group = logs.offsets.group_log(end=4)  # two of three
    cut = _cut(logs.sample(group=group, history=history))
    assert cut.ends[CHANGELOG] == 5
    assert {p: c.offset for p, c in cut.committed.items()} == {INPUT: 20}
    assert _cut(logs.sample(history=history)).ends[CHANGELOG] == 8


def test_what_comes_later_is_excluded_between_what_others_wrote() -> None:
    logs, other = Logs(), Tx(2)
    log = logs.repartition
    log.data(OLD)
    log.commit(OLD, 12)
    log.data(OLD)
    log.data(other)
    log.commit(OLD, 22)
    for tx, at_ms in ((OLD, 11), (other, 15), (OLD, 21)):
        logs.offsets.offsets(tx, {INPUT: at_ms})
        logs.offsets.commit(tx, at_ms)
    history = [OLD.ended(REPARTITION, OFFSETS, prepared_ms=t, completed_ms=t + 5) for t in (10, 20)]
    cut = _cut(logs.sample(group=logs.offsets.group_log(end=4), history=history))
    assert (cut.ends[REPARTITION], cut.excluded[REPARTITION]) == (4, (OffsetRange(2, 3),))


def test_a_segment_without_its_marker_waits_for_it() -> None:
    logs, history = _three_transactions()
    logs.changelog.data(OLD)
    blocker = _blocker(logs.sample(history=history))
    assert blocker.need is Need.CLOSING_MARKERS
    assert blocker.partitions == (CHANGELOG,)


def test_so_do_offset_commits() -> None:
    logs, history = _three_transactions()
    logs.offsets.offsets(OLD, {INPUT: 40})
    blocker = _blocker(logs.sample(history=history))
    assert blocker.need is Need.CLOSING_MARKERS
    assert blocker.partitions == (OFFSETS,)


def test_closing_markers_beyond_the_ends_do_not_move_the_cut() -> None:
    logs, history = _three_transactions()
    end, group_end = logs.changelog.end, logs.offsets.end
    logs.changelog.data(OLD)
    logs.offsets.offsets(OLD, {INPUT: 40})
    sample_end = {CHANGELOG: logs.changelog.end}
    logs.offsets.commit(OLD, 41)
    logs.changelog.commit(OLD, 42)
    history = [*history, OLD.ended(CHANGELOG, OFFSETS, prepared_ms=40, completed_ms=None)]
    group = logs.offsets.group_log(end=group_end)
    cut = _cut(logs.sample(group=group, ends=sample_end, history=history))
    assert cut.ends[CHANGELOG] == end - 1
    assert {p: c.offset for p, c in cut.committed.items()} == {INPUT: 30}


def test_two_in_one_millisecond_with_the_same_partition_are_refused() -> None:
    logs, history = _three_transactions()
    history = [
        OLD.ended(CHANGELOG, OFFSETS, prepared_ms=10, completed_ms=22),
        *history[1:],
    ]
    blocker = _blocker(logs.sample(history=history))
    assert blocker.need is Need.ANOTHER_TRY
    assert "cannot be identified in __transaction_state" in blocker.reason


def test_a_marker_outside_of_all_transactions_is_refused() -> None:
    logs, history = _three_transactions()
    blocker = _blocker(logs.sample(history=history[:2]))
    assert blocker.need is Need.ANOTHER_TRY


def test_offset_commits_from_before_the_history_do_no_harm() -> None:
    logs, history = _three_transactions()
    stable = {CHANGELOG: 3}
    cut = _cut(logs.sample(stable=stable, history=history[1:]))
    assert cut.ends[CHANGELOG] == 8


def test_punctuations() -> None:
    def logs_with(*, offsets_later: bool) -> Sample:
        logs = Logs()
        for log in (logs.changelog, logs.output):
            log.data(OLD)
            log.commit(OLD, 12)
        if offsets_later:
            logs.offsets.offsets(OLD, {INPUT: 5})
            logs.offsets.commit(OLD, 22)
        history = [
            OLD.ended(CHANGELOG, OUTPUT, prepared_ms=10, completed_ms=15),
            OLD.ended(OFFSETS, prepared_ms=20, completed_ms=25),
        ]
        return logs.sample(history=history)

    left_out, taken = (_cut(logs_with(offsets_later=later)) for later in (False, True))
    assert left_out.ends == {CHANGELOG: 0, REPARTITION: 0, OUTPUT: 0}
    assert taken.ends == {CHANGELOG: 1, REPARTITION: 0, OUTPUT: 1}
    assert (left_out.punctuations, taken.punctuations) == (0, 1)


def test_an_aborted_one_among_them() -> None:
    logs = Logs()
    for at_ms, committed in ((10, False), (20, True)):
        logs.changelog.data(OLD)
        logs.offsets.offsets(OLD, {INPUT: at_ms})
        for log in (logs.changelog, logs.offsets):
            (log.commit if committed else log.abort)(OLD, at_ms + 1)
    history = [
        OLD.ended(CHANGELOG, OFFSETS, prepared_ms=10, completed_ms=15, committed=False),
        OLD.ended(CHANGELOG, OFFSETS, prepared_ms=20, completed_ms=25),
    ]
    cut = _cut(logs.sample(history=history))
    assert (cut.ends[CHANGELOG], cut.excluded[CHANGELOG]) == (3, (OffsetRange(0, 1),))
    assert {p: c.offset for p, c in cut.committed.items()} == {INPUT: 20}


def test_the_last_one_of_a_fenced_producer() -> None:
    logs, history = _three_transactions()
    logs.changelog.data(OLD, 2)
    logs.changelog.abort(OLD, 60, fence=True)
    cut = _cut(logs.sample(history=history))
    assert (cut.ends[CHANGELOG], cut.excluded[CHANGELOG]) == (8, ())


def test_side_by_side_with_newer_clients() -> None:
    logs, history = _three_transactions()
    for epoch in (4, 5):
        new = Tx(2, epoch)
        logs.repartition.data(new)
        logs.repartition.commit(new, 50)
        logs.offsets.offsets(new, {REPARTITION: 0})
        logs.offsets.commit(new, 50)
    logs.repartition.data(Tx(2, 6))  # open: nothing needs to be waited for
    cut = _cut(logs.sample(history=history))
    assert cut.ends == {CHANGELOG: 8, REPARTITION: 3, OUTPUT: 0}


def test_lookback_too_short() -> None:
    logs = Logs()
    logs.offsets.offsets(OLD, {INPUT: 3})
    start = logs.offsets.end
    logs.offsets.commit(OLD, 11)
    logs.changelog.data(OLD)
    logs.changelog.commit(OLD, 12)
    history = [OLD.ended(CHANGELOG, OFFSETS, prepared_ms=10, completed_ms=15)]
    group = logs.offsets.group_log(start=start)
    blocker = _blocker(logs.sample(group=group, history=history))
    assert f"are before the part of {OFFSETS} that was read" in blocker.reason
