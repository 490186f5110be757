"""Which transactions belong to a cut: each rule with logs made by hand.

Clients here are those of Kafka 4.0 and later, where every transaction has an epoch of its own;
older ones are in test_cut_older_clients.py.
"""

from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.cut import Blocker, Cut, Need, Sample, decide
from tests.recovery.logs import CHANGELOG, INPUT, OFFSETS, OUTPUT, REPARTITION, Log, Logs, Tx, told

ONE, TWO = Tx(1), Tx(2)


def _cut(sample: Sample) -> Cut:
    decision = decide(sample)
    assert isinstance(decision, Cut), decision
    return decision


def _blocker(sample: Sample) -> Blocker:
    decision = decide(sample)
    assert isinstance(decision, Blocker), decision
    return decision


def _offsets(cut: Cut) -> dict[TopicPartitionId, int]:
    return {partition: committed.offset for partition, committed in cut.committed.items()}


def _commit(tx: Tx, *logs: Log) -> None:
    for log in logs:
        log.commit(tx)


class TestTransactionsWithOffsets:
    """The end of the offsets topic decides."""

    def test_a_committed_one_is_taken_and_an_open_one_is_not(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 10})
        _commit(ONE, logs.changelog, logs.offsets)
        logs.changelog.data(Tx(1, 1), 2)
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 3, REPARTITION: 0, OUTPUT: 0}
        assert not any(cut.excluded.values())
        assert _offsets(cut) == {INPUT: 10}
        assert cut.punctuations == 0

    def test_one_hidden_behind_an_open_one(self) -> None:
        logs = Logs()
        logs.offsets.offsets(ONE, {INPUT: 10})
        logs.repartition.data(ONE, 2)
        logs.changelog.data(TWO, 3)
        logs.repartition.data(TWO, 4)
        logs.offsets.offsets(TWO, {REPARTITION: 0})
        _commit(TWO, logs.offsets, logs.repartition, logs.changelog)
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 3, REPARTITION: 6, OUTPUT: 0}
        assert cut.excluded[REPARTITION] == (OffsetRange(0, 2),)
        assert _offsets(cut) == {REPARTITION: 0}

    def test_its_data_marker_may_be_missing_yet(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 10})
        logs.offsets.commit(ONE)
        assert _cut(logs.sample()).ends[CHANGELOG] == 3

    def test_one_that_lost_its_markers_ends_with_the_next_one_of_its_producer(self) -> None:
        """As a coordinator of Kafka 4.3 leaves it that was killed before it wrote them."""
        logs = Logs()
        logs.changelog.data(ONE, 3)
        logs.repartition.data(ONE)
        logs.offsets.offsets(ONE, {INPUT: 10})
        pending = logs.offsets.group_log()
        after = Tx(1, 1)
        logs.changelog.data(after, 2)
        logs.offsets.offsets(after, {INPUT: 20})
        before = _cut(logs.sample(group=pending, committed=told(input=4)))
        assert (before.ends[CHANGELOG], _offsets(before)) == (0, {INPUT: 4})
        _commit(after, logs.changelog, logs.offsets)
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 5, REPARTITION: 1, OUTPUT: 0}
        assert not any(cut.excluded.values())
        assert _offsets(cut) == {INPUT: 20}

    def test_its_data_marker_may_come_before_that_of_the_offsets(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 10})
        logs.changelog.commit(ONE)
        end = logs.offsets.end
        logs.offsets.commit(ONE)
        before = _cut(logs.sample(group=logs.offsets.group_log(end=end), committed=told(input=4)))
        assert before.ends[CHANGELOG] == 0
        assert _offsets(before) == {INPUT: 4}
        assert _cut(logs.sample()).ends[CHANGELOG] == 3

    def test_an_aborted_one_is_excluded_where_others_follow(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 2)
        logs.offsets.offsets(ONE, {INPUT: 5})
        logs.repartition.abort(ONE)
        logs.offsets.abort(ONE)
        logs.repartition.data(TWO)
        logs.offsets.offsets(TWO, {INPUT: 6})
        _commit(TWO, logs.repartition, logs.offsets)
        cut = _cut(logs.sample())
        assert (cut.ends[REPARTITION], cut.excluded[REPARTITION]) == (4, (OffsetRange(0, 2),))
        assert _offsets(cut) == {INPUT: 6}

    def test_an_aborted_one_at_the_end_is_not_reached(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        logs.changelog.abort(ONE)
        cut = _cut(logs.sample())
        assert (cut.ends[CHANGELOG], cut.excluded[CHANGELOG]) == (0, ())

    def test_the_offsets_say_aborted(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        logs.offsets.offsets(ONE, {INPUT: 5})
        logs.offsets.abort(ONE)
        cut = _cut(logs.sample(committed=told(input=1)))
        assert cut.ends[CHANGELOG] == 0
        assert _offsets(cut) == {INPUT: 1}

    def test_aborted_here_and_committed_there_is_refused(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        logs.changelog.abort(ONE)
        logs.offsets.offsets(ONE, {INPUT: 5})
        logs.offsets.commit(ONE)
        blocker = _blocker(logs.sample())
        assert blocker.need is Need.ANOTHER_TRY
        assert "shows as aborted" in blocker.reason

    def test_a_fenced_producer(self) -> None:
        logs, zombie, heir = Logs(), Tx(1, 4), Tx(2, 0)
        logs.changelog.data(zombie, 2)
        logs.changelog.data(heir, 3)
        logs.offsets.offsets(heir, {INPUT: 8})
        _commit(heir, logs.offsets, logs.changelog)
        logs.changelog.abort(zombie, fence=True)
        cut = _cut(logs.sample())
        assert (cut.ends[CHANGELOG], cut.excluded[CHANGELOG]) == (5, (OffsetRange(0, 2),))

    def test_everything_below_the_last_stable_offset_belongs_to_it(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 7)
        logs.changelog.commit(ONE)
        cut = _cut(logs.sample(stable={CHANGELOG: 8}, committed=told(input=10)))
        assert cut.ends[CHANGELOG] == 8

    def test_several_writers_give_several_excluded_ranges(self) -> None:
        logs, open_one, later = Logs(), Tx(3), Tx(2, 1)
        log = logs.repartition
        log.data(open_one, 2)  # 0, 1
        log.data(ONE)  # 2
        log.data(open_one)  # 3
        log.commit(ONE)  # 4
        log.data(TWO)  # 5
        log.commit(TWO)  # 6
        log.data(later, 2)  # 7, 8: committed, but after the end of the offsets topic
        log.data(Tx(1, 1))  # 9
        for tx, tx_log in ((ONE, logs.offsets), (TWO, logs.offsets), (Tx(1, 1), logs.offsets)):
            tx_log.offsets(tx, {INPUT: 1})
            tx_log.commit(tx)
        end = logs.offsets.end
        logs.offsets.offsets(later, {INPUT: 2})
        logs.offsets.commit(later)
        log.commit(later)
        cut = _cut(logs.sample(group=logs.offsets.group_log(end=end)))
        assert cut.ends[REPARTITION] == 10
        assert cut.excluded[REPARTITION] == (
            OffsetRange(0, 2),
            OffsetRange(3, 4),
            OffsetRange(7, 9),
        )

    def test_excluded_ranges_begin_at_the_last_stable_offset(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 2)
        logs.repartition.abort(ONE)
        logs.repartition.data(TWO)
        logs.offsets.offsets(TWO, {INPUT: 1})
        logs.offsets.commit(TWO)
        cut = _cut(logs.sample(first_stable={}, stable={REPARTITION: 3}))
        assert cut.excluded[REPARTITION] == ()


class TestReaders:
    """What a reader has consumed must belong to the cut."""

    def test_a_committed_offset_behind_a_marker_is_the_end(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 1})
        _commit(ONE, logs.repartition, logs.offsets)
        logs.offsets.offsets(TWO, {REPARTITION: 4})
        logs.offsets.commit(TWO)
        assert _cut(logs.sample()).ends[REPARTITION] == 4

    def test_a_reader_beyond_a_writer_that_is_not_taken_is_refused(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 1})
        logs.repartition.commit(ONE)  # its marker in the offsets topic is late
        logs.changelog.data(TWO)
        logs.offsets.offsets(TWO, {REPARTITION: 3})
        _commit(TWO, logs.changelog, logs.offsets)
        end = logs.offsets.end
        logs.offsets.commit(ONE)
        blocker = _blocker(logs.sample(group=logs.offsets.group_log(end=end)))
        assert blocker.need is Need.ANOTHER_TRY
        assert "has read app-by-key-repartition-0 up to offset 3, beyond" in blocker.reason
        assert "(offset 0)" in blocker.reason

    def test_the_same_in_an_intermediate_topic(self) -> None:
        logs = Logs()
        logs.output.data(ONE, 3)
        logs.offsets.offsets(ONE, {INPUT: 1})
        logs.offsets.offsets(TWO, {OUTPUT: 3})
        logs.offsets.commit(TWO)
        assert "has read totals-0 up to offset 3" in _blocker(logs.sample()).reason

    def test_a_reader_beyond_what_was_aborted_is_right(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 3)
        logs.repartition.abort(ONE)
        logs.offsets.offsets(TWO, {REPARTITION: 4})
        logs.offsets.commit(TWO)
        cut = _cut(logs.sample())
        assert (cut.ends[REPARTITION], cut.excluded[REPARTITION]) == (4, (OffsetRange(0, 3),))


class TestPunctuations:
    """Committed transactions without offset commits."""

    def test_one_at_the_end_is_left_out_everywhere(self) -> None:
        logs = Logs()
        for log in (logs.changelog, logs.output):
            log.data(ONE, 2)
            log.commit(ONE)
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 0, REPARTITION: 0, OUTPUT: 0}

    def test_one_is_taken_if_its_producer_committed_offsets_later(self) -> None:
        logs = Logs()
        for log in (logs.changelog, logs.output):
            log.data(ONE, 2)
            log.commit(ONE)
        logs.offsets.offsets(Tx(1, 1), {INPUT: 3})
        logs.offsets.commit(Tx(1, 1))
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 2, REPARTITION: 0, OUTPUT: 2}
        assert cut.punctuations == 1

    def test_offsets_that_its_producer_committed_earlier_say_nothing(self) -> None:
        logs = Logs()
        logs.offsets.offsets(ONE, {INPUT: 3})
        logs.offsets.commit(ONE)
        logs.changelog.data(Tx(1, 1), 2)
        logs.changelog.commit(Tx(1, 1))
        assert _cut(logs.sample()).ends[CHANGELOG] == 0

    def test_one_is_taken_if_a_marker_of_it_was_seen_stable(self) -> None:
        logs = Logs()
        for log in (logs.changelog, logs.output):
            log.data(ONE, 2)
            log.commit(ONE)
        sample = logs.sample(stable={CHANGELOG: 0, OUTPUT: 0}, early={CHANGELOG: 3})
        assert _cut(sample).ends == {CHANGELOG: 2, REPARTITION: 0, OUTPUT: 2}
        assert _cut(logs.sample(early={CHANGELOG: 2})).ends[CHANGELOG] == 0

    def test_one_is_taken_if_another_open_transaction_hides_that_it_was_stable(self) -> None:
        logs, foreign = Logs(), Tx(99)
        logs.changelog.data(ONE, 2)
        logs.changelog.commit(ONE)
        logs.output.data(foreign)
        logs.output.data(ONE, 2)
        logs.output.commit(ONE)
        stable = {CHANGELOG: 3, OUTPUT: 0}
        early = {CHANGELOG: 3, OUTPUT: 4}
        cut = _cut(logs.sample(stable=stable, early=early, producers=frozenset({1})))
        assert cut.ends == {CHANGELOG: 3, REPARTITION: 0, OUTPUT: 3}

    def test_one_is_taken_if_data_of_the_cut_follows_its_marker(self) -> None:
        logs, heir = Logs(), Tx(2)
        for log in (logs.changelog, logs.output):
            log.data(ONE, 2)
            log.commit(ONE)
        logs.changelog.data(heir)
        logs.offsets.offsets(heir, {INPUT: 8})
        logs.offsets.commit(heir)
        cut = _cut(logs.sample())
        assert cut.ends == {CHANGELOG: 4, REPARTITION: 0, OUTPUT: 2}
        assert not any(cut.excluded.values())

    def test_data_between_its_own_and_its_marker_says_nothing(self) -> None:
        logs = Logs()
        logs.repartition.data(ONE, 2)
        logs.repartition.data(TWO)
        logs.repartition.commit(ONE)
        logs.offsets.offsets(TWO, {INPUT: 8})
        logs.offsets.commit(TWO)
        cut = _cut(logs.sample())
        assert (cut.ends[REPARTITION], cut.excluded[REPARTITION]) == (3, (OffsetRange(0, 2),))

    def test_chains(self) -> None:
        logs, third, heir = Logs(), Tx(3), Tx(4)
        logs.output.data(ONE)  # taken because TWO follows it here
        logs.output.commit(ONE)
        logs.output.data(TWO)  # taken because the third one follows it in the repartition topic
        logs.output.commit(TWO)
        logs.repartition.data(TWO)
        logs.repartition.commit(TWO)
        logs.repartition.data(third)  # taken because of the heir in the changelog
        logs.repartition.commit(third)
        logs.changelog.data(third)
        logs.changelog.commit(third)
        logs.changelog.data(heir)
        logs.offsets.offsets(heir, {INPUT: 8})
        logs.offsets.commit(heir)
        cut = _cut(logs.sample(producers=frozenset({1})))
        assert cut.ends == {CHANGELOG: 3, REPARTITION: 3, OUTPUT: 3}
        assert cut.punctuations == 3

    def test_one_whose_offsets_are_pending_is_none(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        logs.offsets.offsets(ONE, {INPUT: 5})
        logs.changelog.commit(ONE)
        logs.changelog.data(TWO)
        logs.offsets.offsets(TWO, {INPUT: 8})
        logs.offsets.commit(TWO)
        sample = logs.sample(early={CHANGELOG: 3})
        cut = _cut(sample)
        assert (cut.ends[CHANGELOG], cut.excluded[CHANGELOG]) == (4, (OffsetRange(0, 2),))
        assert cut.punctuations == 0

    def test_an_aborted_one_is_never_taken(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        logs.changelog.abort(ONE)
        logs.offsets.offsets(Tx(1, 1), {INPUT: 3})
        logs.offsets.commit(Tx(1, 1))
        assert _cut(logs.sample(early={CHANGELOG: 3})).ends[CHANGELOG] == 0

    def test_an_open_one_is_never_taken(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE, 2)
        assert _cut(logs.sample(early={CHANGELOG: 2})).ends[CHANGELOG] == 0


class TestOthersInOutputs:
    """In topics that anybody may write, only this application's transactions are judged."""

    def test_unknown_producers_are_asked_for(self) -> None:
        logs = Logs()
        logs.output.data(Tx(99))
        blocker = _blocker(logs.sample(producers=None))
        assert blocker.need is Need.PRODUCERS
        assert "totals-0" in blocker.reason

    def test_producers_of_internal_topics_and_offsets_are_known(self) -> None:
        logs = Logs()
        logs.output.data(ONE)
        logs.output.data(TWO)
        logs.changelog.data(ONE)
        logs.offsets.offsets(TWO, {INPUT: 3})
        logs.offsets.commit(TWO)
        cut = _cut(logs.sample(producers=None))
        assert (cut.ends[OUTPUT], cut.excluded[OUTPUT]) == (2, (OffsetRange(0, 1),))

    def test_what_others_write_is_left_alone(self) -> None:
        logs, foreign = Logs(), Tx(99)
        logs.output.data(foreign, 2)
        logs.output.plain(2)
        logs.output.data(ONE)
        logs.output.commit(foreign)
        logs.output.data(Tx(98))
        logs.offsets.offsets(ONE, {INPUT: 3})
        logs.offsets.commit(ONE)
        cut = _cut(logs.sample(producers=frozenset({1})))
        assert (cut.ends[OUTPUT], cut.excluded[OUTPUT]) == (5, ())

    def test_a_producer_that_wrote_nothing_else_is_excluded_when_named(self) -> None:
        logs = Logs()
        logs.output.data(TWO)
        logs.output.data(ONE)
        logs.offsets.offsets(ONE, {INPUT: 3})
        logs.offsets.commit(ONE)
        cut = _cut(logs.sample(producers=frozenset({1, 2})))
        assert (cut.ends[OUTPUT], cut.excluded[OUTPUT]) == (2, (OffsetRange(0, 1),))


class TestRefusals:
    """What this method cannot decide."""

    def test_lookback_too_short(self) -> None:
        logs = Logs()
        logs.offsets.offsets(ONE, {INPUT: 3})
        start = logs.offsets.end
        logs.offsets.commit(ONE)
        logs.changelog.data(ONE)
        logs.changelog.commit(ONE)
        blocker = _blocker(logs.sample(group=logs.offsets.group_log(start=start)))
        assert blocker.need is Need.ANOTHER_TRY
        assert f"are before the part of {OFFSETS} that was read" in blocker.reason
        assert _cut(logs.sample()).ends[CHANGELOG] == 1

    def test_a_marker_of_offsets_beyond_the_end_is_no_short_lookback(self) -> None:
        logs = Logs()
        logs.changelog.data(ONE)
        end = logs.offsets.end
        logs.offsets.offsets(ONE, {INPUT: 3})
        logs.offsets.commit(ONE)
        assert _cut(logs.sample(group=logs.offsets.group_log(end=end))).ends[CHANGELOG] == 0

    def test_markers_of_other_groups_are_no_short_lookback(self) -> None:
        logs = Logs()
        logs.offsets.commit(Tx(99))
        logs.changelog.data(ONE)
        assert _cut(logs.sample()).ends[CHANGELOG] == 0

    def test_plain_records_in_internal_topics(self) -> None:
        for internal in ("changelog", "repartition"):
            logs = Logs()
            getattr(logs, internal).data(ONE)
            log: Log = getattr(logs, internal)
            log.plain()
            blocker = _blocker(logs.sample())
            assert blocker.need is Need.ANOTHER_METHOD
            assert f"{log.partition} has records outside of transactions at offset 1" in (
                blocker.reason
            )

    def test_plain_offset_commits(self) -> None:
        logs = Logs()
        logs.offsets.offsets(None, {INPUT: 3})
        blocker = _blocker(logs.sample())
        assert blocker.need is Need.ANOTHER_METHOD
        assert "outside of transactions" in blocker.reason

    def test_a_deleted_offset_is_gone(self) -> None:
        logs = Logs()
        logs.offsets.offsets(ONE, {INPUT: None, REPARTITION: 0})
        logs.offsets.commit(ONE)
        assert _offsets(_cut(logs.sample(committed=told(input=3)))) == {REPARTITION: 0}
