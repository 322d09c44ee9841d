# SPDX-License-Identifier: Apache-2.0
"""Follower fetching: the follower that a leader names, and the reads that a follower serves (rule K1, KIP-392)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import Chunk, EpochEnd, LeaderMessage, Refusal
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.leader.follower_session import PROMPT_MS
from tidemark.core.replication.replica import ReadableRange
from tidemark.model import BrokerRegistration, ErrorCode, ReplicaIdentity, TidemarkError
from tidemark.record.envelope import stamped

from tests.refusals import raises_code
from tests.unit.core.replication.stage import ID, P, Stage, batch, marker, node, pending

RACKS = {1: "a", 2: "b", 3: "b"}
SILENCE_MS = 3 * 500
"""Three heartbeat intervals."""


def brokers(racks: dict[int, str] = RACKS, **epochs: int) -> dict[int, BrokerRegistration]:
    return {
        one: BrokerRegistration(one, f"host{one}", 9192, broker_epoch=epochs.get(f"b{one}", 10 + one), rack=rack)
        for one, rack in racks.items()
    }


# -- the leader ------------------------------------------------------------------------------------------------------


def leading(isr: Sequence[int] = (1, 2, 3), *, ends: dict[int, int] | None = None, **more: Any) -> Stage:
    """Broker 1, in rack a, leads 10 records in epoch 5; the followers have fetched up to `ends`."""
    stage = Stage().leads(isr, end=10, epochs=[(3, 0)], high_watermark=10, **more)
    for follower, end in (ends or {2: 10, 3: 10}).items():
        stage.fetches(follower, end, last_epoch=3)
    stage.feed(ev.Tick())
    return stage


def named(stage: Stage, *, rack: str = "b", offset: int = 4, **more: Any) -> int | None:
    known = more.pop("known", None) or brokers()
    return stage.core.queries.preferred_replica(P, rack=rack, brokers=known, fetch_offset=offset, now_ms=stage.now)


def test_a_leader_names_the_furthest_of_those_in_sync_in_the_consumers_rack() -> None:
    stage = leading()
    assert named(stage) == 2
    stage.write(batch(5), acks=1)
    stage.reports(3, 15)
    assert named(stage) == 3


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_a_leader_serves_consumers_without_a_rack_or_in_its_own_or_in_one_without_a_replica(rack: str) -> None:
    assert named(leading(), rack=rack) is None


def test_a_leader_names_no_follower_out_of_sync() -> None:
    stage = leading((1, 2), ends={2: 10, 3: 4})
    assert named(stage, known=brokers({1: "a", 2: "c", 3: "b"})) is None
    assert named(stage, rack="c", known=brokers({1: "a", 2: "c", 3: "b"})) == 2


def test_a_leader_names_no_follower_that_a_shrink_in_flight_removes() -> None:
    stage = leading((1, 2), ends={2: 10})
    assert named(stage) == 2
    stage.write(batch(), acks=1)
    for _ in range(30):
        stage.feed(ev.Tick(), after_ms=500)
    assert named(stage) is None


def test_a_leader_names_no_follower_whose_log_does_not_reach_the_consumer() -> None:
    stage = leading((1, 2), ends={2: 10})
    stage.write(batch(3), acks=1)
    assert named(stage, offset=10) == 2
    assert named(stage, offset=11) is None


def test_a_leader_names_no_follower_that_is_suspected_or_away_or_has_registered_again() -> None:
    stage = leading((1, 2), ends={2: 10})
    assert named(stage) == 2
    assert named(stage, known=brokers({1: "a"})) is None
    assert named(stage, known=brokers(b2=99)) is None
    stage.command(node(1, 5, (1, 2)), suspected=(2,))
    assert named(stage) is None


def test_a_leader_names_no_silent_follower_and_none_without_a_stream() -> None:
    stage = leading((1, 2), ends={2: 10})
    stage.now += SILENCE_MS
    assert named(stage) == 2
    stage.now += 1
    assert named(stage) is None
    stage.fetches(2, 10, last_epoch=3)
    assert named(stage) is None, "the follower has got no high watermark yet"
    stage.feed(ev.Tick())
    assert named(stage) == 2
    stage.feed(ev.FollowerDisconnected(2, 12))
    assert named(stage) is None


def test_a_new_leader_names_no_follower_before_the_whole_isr_has_reached_its_epoch() -> None:
    stage = Stage().leads((1, 2, 3), end=10, epochs=[(3, 0)], high_watermark=6, min_isr=2)
    stage.fetches(2, 10, last_epoch=3)
    assert named(stage) is None
    stage.feed(ev.Tick())
    assert named(stage) is None
    stage.fetches(3, 10, last_epoch=3)
    assert named(stage) == 2


def test_a_leader_with_the_leader_selector_names_no_follower() -> None:
    stage = leading()
    stage.feed(ev.SettingsChanged(ReplicationConfig(rack_aware_reads=False)))
    assert named(stage) is None


def test_a_replica_that_does_not_lead_names_no_follower() -> None:
    with raises_code(ErrorCode.NOT_LEADER):
        named(Stage().follows(end=10, epochs=[(3, 0)]))


def told(stage: Stage, follower: int) -> list[int]:
    """High watermarks in the chunks to a follower of the last event."""
    sent = [one for one in stage.got(fx.SendToFollower) if one.follower == follower]
    return [chunk.high_watermark for one in sent for chunk in one.message.chunks]


def test_a_follower_with_consumers_gets_a_high_watermark_at_once_and_others_with_a_tick() -> None:
    stage = leading()
    stage.feed(ev.PreferredReplicaNamed(P, 2))
    stage.write(batch(2), acks=1)
    stage.disk_answers()
    stage.reports(2, 12)
    stage.reports(3, 12)
    assert stage.high_watermark() == 12
    assert (told(stage, 2), told(stage, 3)) == ([12], [])
    stage.feed(ev.Tick())
    assert (told(stage, 2), told(stage, 3)) == ([], [12])


def test_a_follower_without_consumers_for_long_gets_high_watermarks_with_a_tick_again() -> None:
    stage = leading()
    stage.feed(ev.PreferredReplicaNamed(P, 2))
    stage.feed(ev.PreferredReplicaNamed(P, 9))
    stage.now += PROMPT_MS
    stage.write(batch(2), acks=1)
    stage.disk_answers()
    stage.reports(2, 12)
    stage.reports(3, 12)
    assert (told(stage, 2), told(stage, 3)) == ([], [])
    stage.feed(ev.Tick())
    assert (told(stage, 2), told(stage, 3)) == ([12], [12])


# -- the follower ----------------------------------------------------------------------------------------------------


class Follower(Stage):
    """Broker 1 follows broker 2 in epoch 5, has records to 10 of epoch 3, and gets the high watermark 8."""

    def __init__(self, *, high_watermark: int = 8, own: int = 0, damaged: str | None = None) -> None:
        super().__init__()
        self.command(node(2, 5, (1, 2)))
        self.opened(10, (3, 0), high_watermark=own, damaged=damaged)
        self.feed(ev.LeaderConnected(2))
        self.hears(ends=(EpochEnd(P, 5, 3, 10, high_watermark),))
        self.hears(chunks=(Chunk(P, 5, 10, high_watermark, 0, ()),))

    def hears(self, *, ends: Sequence[EpochEnd] = (), chunks: Sequence[Chunk] = (), sent_ms: int | None = None) -> None:
        """A message of the leader, whose clock is 50 s ahead."""
        clock_ms = 50_000 + (self.now if sent_ms is None else sent_ms)
        self.feed(ev.LeaderMessageArrived(2, LeaderMessage(tuple(ends), tuple(chunks), (), clock_ms)))

    def asked(self, offset: int = 4, **more: Any) -> ReadableRange:
        return self.core.queries.readable_here(
            P,
            identity=more.get("identity", ID),
            current_leader_epoch=more.get("epoch", 5),
            fetch_offset=offset,
            last_fetched_epoch=more.get("last_epoch", -1),
            in_sync_replicas=more.get("isr", (1, 2)),
            now_ms=self.now,
            committed_only=more.get("committed_only", False),
        )

    def refuses(self, offset: int = 4, **more: Any) -> ErrorCode:
        with pytest.raises(TidemarkError) as refused:
            self.asked(offset, **more)
        if refused.value.code is not ErrorCode.LOG_TRUNCATED:
            assert "leader" in refused.value.metadata
        return refused.value.code


def test_a_follower_serves_records_below_its_high_watermark_and_states_the_leaders() -> None:
    follower = Follower()
    assert follower.asked() == ReadableRange(8, 8, 0, 10)
    assert follower.asked(8).end_offset == 8
    assert follower.asked(10).end_offset == 10, "no records between the high watermark and the log end"


def test_a_follower_serves_committed_records_up_to_its_log_end() -> None:
    assert Follower(high_watermark=30).asked() == ReadableRange(10, 30, 0, 10, 10)


def test_a_follower_serves_read_committed_up_to_its_last_stable_offset() -> None:
    follower = Follower(high_watermark=10)
    opens = pending()
    opens = opens._replace(envelope=opens.envelope._replace(base_offset=10, leader_epoch=5))
    ends = stamped(marker(), base_offset=11, leader_epoch=5)
    assert follower.asked(committed_only=True).end_offset == 10
    follower.hears(chunks=(Chunk(P, 5, 10, 11, 0, (opens,)),))
    follower.feed(ev.LogAppended(P, ID, 11))
    assert follower.asked().end_offset == 11
    assert follower.asked(committed_only=True).end_offset == 10
    follower.hears(chunks=(Chunk(P, 5, 11, 11, 0, (ends,)),))
    follower.feed(ev.LogAppended(P, ID, 12))
    assert follower.asked(committed_only=True)[-1] == 10, "the leader has not committed the marker"
    follower.hears(chunks=(Chunk(P, 5, 12, 12, 0, ()),))
    found = follower.asked(committed_only=True)
    assert (found.end_offset, found.last_stable_offset) == (12, 12)


def test_a_follower_that_may_lack_a_marker_above_its_high_watermark_refuses_read_committed() -> None:
    assert Follower().refuses(committed_only=True) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert Follower(own=9, high_watermark=6).refuses(committed_only=True) is ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_high_watermark_of_an_earlier_epoch_counts_only_once_the_leader_has_sent_it() -> None:
    assert Follower(own=9, high_watermark=6).asked().end_offset == 6
    follower = Follower(own=9, high_watermark=0)
    assert follower.asked().end_offset == 4
    follower.hears(chunks=(Chunk(P, 5, 10, 10, 0, ()),))
    assert follower.asked().end_offset == 10


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"identity": ReplicaIdentity(ID.topic_id, "c" * 32)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"identity": ReplicaIdentity("", "")}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"isr": (2, 3)}, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({"isr": ()}, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({"offset": 11}, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_a_follower_refuses_other_identities_and_offsets_outside_its_log(more: dict[str, Any], code: ErrorCode) -> None:
    assert Follower().refuses(**more) is code


def test_an_offset_below_a_followers_log_start_is_for_the_leader_to_judge() -> None:
    follower = Follower()
    follower.hears(chunks=(Chunk(P, 5, 10, 8, 5, ()),))
    assert follower.refuses(4) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert follower.asked(5).log_start_offset == 5


def test_deleted_records_are_not_served_while_the_append_with_the_new_log_start_is_in_flight() -> None:
    """A follower killed before it wrote its new log start restarts with the old one."""
    follower = Follower(own=9)
    follower.command(node(3, 6, (1, 3)))
    follower.feed(ev.LeaderConnected(3))
    ended, chunk = EpochEnd(P, 6, 3, 10), Chunk(P, 6, 10, 10, 5, (batch(1, offset=10, epoch=6),))
    follower.feed(ev.LeaderMessageArrived(3, LeaderMessage((ended,), (), (), 50_000 + follower.now)))
    follower.feed(ev.LeaderMessageArrived(3, LeaderMessage((), (chunk,), (), 50_000 + follower.now)))
    assert follower.refuses(4, epoch=6) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert follower.asked(5, epoch=6).log_start_offset == 5


def test_a_follower_too_answers_log_truncated_to_a_diverged_consumer() -> None:
    follower = Follower()
    assert follower.refuses(8, last_epoch=4) is ErrorCode.LOG_TRUNCATED
    assert follower.asked(8, last_epoch=3).end_offset == 8


def test_a_follower_that_has_not_reconciled_in_this_epoch_serves_no_reads() -> None:
    stage = Follower()
    stage.command(node(3, 6, (1, 3)))
    assert stage.refuses(epoch=6) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert stage.refuses(epoch=5) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_follower_serves_no_reads_before_its_leader_has_sent_from_its_log_end() -> None:
    """A leader without an old epoch answers with its log start as the end, and refuses a fetch from there."""
    follower = Follower()
    follower.command(node(3, 6, (1, 3)))
    follower.feed(ev.LeaderConnected(3))
    ended = EpochEnd(P, 6, 3, 10)
    follower.feed(ev.LeaderMessageArrived(3, LeaderMessage((ended,), (), (), 50_000 + follower.now)))
    assert follower.refuses(10, epoch=6, last_epoch=6) is ErrorCode.OFFSET_NOT_AVAILABLE
    chunk = Chunk(P, 6, 10, 10, 0, ())
    follower.feed(ev.LeaderMessageArrived(3, LeaderMessage((), (chunk,), (), 50_000 + follower.now)))
    assert follower.asked(10, epoch=6, last_epoch=3).end_offset == 10


def test_a_follower_out_of_contact_serves_no_reads_until_the_next_message_of_its_leader() -> None:
    follower = Follower()
    follower.now += SILENCE_MS
    follower.asked()
    follower.now += 1
    assert follower.refuses() is ErrorCode.OFFSET_NOT_AVAILABLE
    follower.hears()
    follower.asked()
    follower.feed(ev.LeaderDisconnected(2))
    assert follower.refuses() is ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_message_that_waited_while_the_follower_was_stopped_restores_no_contact() -> None:
    follower = Follower()
    sent_ms = follower.now + 500
    follower.now += 20_000
    follower.hears(sent_ms=sent_ms)
    assert follower.refuses() is ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_follower_whose_log_failed_serves_no_reads() -> None:
    follower = Follower()
    follower.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone")))
    assert follower.refuses() is ErrorCode.NOT_LEADER


def test_a_follower_with_the_leader_selector_serves_no_reads() -> None:
    follower = Follower()
    follower.feed(ev.SettingsChanged(ReplicationConfig(rack_aware_reads=False)))
    assert follower.refuses() is ErrorCode.NOT_LEADER


def test_a_follower_with_a_damaged_log_serves_no_reads_until_the_damage_ends() -> None:
    follower = Follower(high_watermark=12, damaged="a hole")
    assert follower.refuses() is ErrorCode.OFFSET_NOT_AVAILABLE
    follower.hears(chunks=(Chunk(P, 5, 10, 12, 0, (batch(2, offset=10, epoch=5),)),))
    follower.feed(ev.LogAppended(P, ID, 12))
    assert follower.asked().end_offset == 12


def test_a_follower_that_fetches_again_serves_no_reads_before_its_leader_has_sent_from_there() -> None:
    follower = Follower()
    assert follower.asked().end_offset == 8
    follower.from_leader(refusals=[Refusal(P, ErrorCode.STORAGE_ERROR, "", 5, 0)])
    follower.feed(ev.Tick(), after_ms=100)
    assert follower.said().positions
    follower.hears()
    assert follower.refuses() is ErrorCode.OFFSET_NOT_AVAILABLE
    follower.hears(chunks=(Chunk(P, 5, 10, 8, 0, ()),))
    assert follower.asked().end_offset == 8


def test_a_leader_is_not_read_as_a_follower() -> None:
    stage = leading()
    with raises_code(ErrorCode.NOT_LEADER) as refused:
        stage.core.queries.readable_here(
            P,
            identity=ID,
            current_leader_epoch=5,
            fetch_offset=4,
            last_fetched_epoch=-1,
            in_sync_replicas=(1, 2),
            now_ms=stage.now,
        )
    assert refused.value.metadata["leader"] == "1"
