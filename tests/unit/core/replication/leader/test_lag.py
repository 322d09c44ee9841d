# SPDX-License-Identifier: Apache-2.0
"""The time at which a follower was caught up, and eviction of lagging followers (rules R6, R7, R8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import FollowerMessage, LeaderAndIsrCommand
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import BrokerRegistration, ErrorCode, TidemarkError
from tidemark.runtime.configuration.entries import lag_ms_min

from tests.unit.core.replication.stage import ID, P, Stage, batch, node
from tests.unit.core.replication.test_group_commit import fetches, flushed, reports

BATCH_BYTES = batch().envelope.batch_length
LAG_MAX_MS = 10_000
A_CHECK_MS = LAG_MAX_MS // 20 + 100


def heartbeat(stage: Stage) -> None:
    stage.from_follower(2, FollowerMessage())


def leaves_within(stage: Stage, limit_ms: int, meanwhile: Callable[[], None] = lambda: None) -> int | None:
    """Time until follower 2 is evicted, None if it stays."""
    began = stage.now
    while stage.now - began < limit_ms:
        meanwhile()
        stage.disk_answers()
        stage.feed(ev.Tick(), after_ms=100)
        assert not stage.got(fx.ResignLeadership)
        for write in stage.got(fx.WriteIsr):
            assert write.state.isr_ids == (1,)
            return stage.now - began
    return None


def two(**topic_configs: str) -> Stage:
    """A leader with its only follower in sync, so that no lag check is due (rule R6)."""
    stage = Stage()
    stage.topic_configs = {key.replace("_", "."): value for key, value in topic_configs.items()}
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2))
    stage.opened()
    return stage


def idle(heartbeats_ms: int = 3_000) -> Stage:
    """A follower with every record, which sends heartbeats for `heartbeats_ms`."""
    stage = two()
    stage.fetches(2, 0)
    stage.write(acks=1)
    stage.disk_answers()
    stage.reports(2, 1)
    assert leaves_within(stage, heartbeats_ms, lambda: heartbeat(stage)) is None
    return stage


def after_the_lag_time(took_ms: int | None) -> bool:
    return took_ms is not None and LAG_MAX_MS < took_ms <= LAG_MAX_MS + A_CHECK_MS


def test_a_follower_that_stops_while_an_idle_leader_appends_again_was_caught_up_until_its_last_heartbeat() -> None:
    stage = idle(heartbeats_ms=30_000)
    stage.write(acks=1)
    assert after_the_lag_time(leaves_within(stage, 20_000))


def test_a_follower_that_has_everything_and_falls_silent_leaves_though_nothing_is_written() -> None:
    stage = idle()
    assert after_the_lag_time(leaves_within(stage, 20_000))


@pytest.mark.parametrize("lag_max_ms", [100, 399])
def test_a_leader_with_a_short_lag_time_checks_its_followers_too(lag_max_ms: int) -> None:
    """Regression: each tick came later than a quarter of the lag time, as if the process had been stopped."""
    stage = idle()
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=lag_max_ms)))
    took_ms = leaves_within(stage, 10 * lag_max_ms)
    assert took_ms is not None
    assert took_ms <= lag_max_ms + 100


@pytest.mark.parametrize("heartbeat_ms", [10, 100, 150, 500])
def test_an_idle_follower_stays_in_sync_at_the_lowest_lag_time(heartbeat_ms: int) -> None:
    """Its heartbeats are due at ticks, so each may be late by a tick, and a little on the way."""
    stage = idle()
    lag_max_ms = lag_ms_min(heartbeat_ms)
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=lag_max_ms)))
    heartbeat(stage)
    for time_ms in range(10, 5_000, 10):
        stage.now += 10
        if time_ms % 100 == 0:
            stage.feed(ev.Tick())
            assert not stage.got(fx.WriteIsr)
        if time_ms % (heartbeat_ms + 110) == 0:
            heartbeat(stage)


def test_a_follower_whose_stream_breaks_was_caught_up_until_its_last_heartbeat() -> None:
    stage = idle(heartbeats_ms=30_000)
    stage.feed(ev.FollowerDisconnected(2, 12))
    assert after_the_lag_time(leaves_within(stage, 20_000))


def test_a_live_follower_that_appends_nothing_lags_however_often_the_leader_appends() -> None:
    stage = idle()

    def alive() -> None:
        heartbeat(stage)
        stage.write(acks=1)

    assert after_the_lag_time(leaves_within(stage, 20_000, alive))


def test_a_follower_is_caught_up_as_of_the_time_whose_log_end_it_has_reached() -> None:
    """A follower always one message behind a busy leader is in sync."""
    stage = two()
    stage.fetches(2, 0)
    end = 0

    def follow() -> None:
        nonlocal end
        stage.write(acks=1)
        stage.reports(2, end)
        end += 1

    assert leaves_within(stage, 30_000, follow) is None

    def fall_behind() -> None:
        stage.write(acks=1)
        stage.reports(2, end)

    assert after_the_lag_time(leaves_within(stage, 20_000, fall_behind))


def follows(stage: Stage) -> Callable[[], None]:
    """A follower that reports each time the log end of its previous report: three to six batches behind."""
    end = 0

    def follow() -> None:
        nonlocal end
        for _ in range(3):
            stage.write(acks=1)
        stage.reports(2, end)
        end += 3

    return follow


def limited(max_bytes: int) -> Stage:
    stage = two()
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_max_bytes=max_bytes)))
    stage.fetches(2, 0)
    return stage


@pytest.mark.parametrize(("limit_batches", "leaves"), [(0, False), (3, False), (2, True)])
def test_a_follower_too_many_bytes_behind_for_half_the_lag_time_is_evicted(limit_batches: int, leaves: bool) -> None:
    """The follower is caught up in time; once near enough within the lag time, it stays."""
    stage = limited(limit_batches * BATCH_BYTES)
    took_ms = leaves_within(stage, 30_000, follows(stage))
    assert took_ms is None if not leaves else LAG_MAX_MS / 2 <= took_ms <= LAG_MAX_MS / 2 + A_CHECK_MS + 500
    if leaves:
        assert "2:lagging" in [one.fields["reasons"] for one in stage.got(fx.Observed) if one.kind == "isr_shrinking"]


def test_a_changed_byte_limit_restarts_the_count() -> None:
    stage = limited(2 * BATCH_BYTES)
    follow = follows(stage)
    assert leaves_within(stage, LAG_MAX_MS // 2 - 500, follow) is None
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_max_bytes=3 * BATCH_BYTES)))
    assert leaves_within(stage, 30_000, follow) is None


def test_an_append_without_disk_space_puts_no_follower_behind() -> None:
    stage = limited(2 * BATCH_BYTES)
    stage.write(acks=1)
    stage.disk_answers()
    stage.reports(2, 1)
    tried: list[int] = []

    def tries_again() -> None:
        if stage.now - (tried or [0])[-1] >= 1_000:
            tried.append(stage.now)
            stage.produce(acks=1)
            assert stage.one(fx.AppendToLog)
            stage.feed(ev.LogFull(P, ID, 1, ProducerStates(), TidemarkError(ErrorCode.DISK_FULL, "no space")))
            stage.reports(2, 1)

    assert leaves_within(stage, 2 * LAG_MAX_MS, tries_again) is None
    assert len(tried) > LAG_MAX_MS // 1_000


def test_a_follower_with_everything_that_the_leaders_slow_disk_wrote_is_not_behind() -> None:
    stage = limited(2 * BATCH_BYTES)
    produced = written = 0

    def goes_on() -> None:
        nonlocal produced, written
        while produced - written < 6:
            stage.produce(acks=1)
            produced += 1
        written += 1
        stage.appended(written)
        stage.disk_answers()
        stage.reports(2, written)

    assert leaves_within(stage, 2 * LAG_MAX_MS, goes_on) is None


def flushing() -> Stage:
    """A record that the leader has written, flushed and sent."""
    stage = two(flush_policy="group-commit")
    fetches(stage, 2, 0, flushed=0)
    stage.write()
    flushed(stage, 1)
    stage.disk_answers()
    return stage


def test_a_live_follower_with_every_record_is_evicted_if_it_never_flushes() -> None:
    stage = flushing()
    reports(stage, 2, 1, flushed=0)
    assert after_the_lag_time(leaves_within(stage, 20_000, lambda: heartbeat(stage)))


def test_a_repeated_command_gives_a_hanging_disk_no_more_time() -> None:
    stage = flushing()
    reports(stage, 2, 1, flushed=0)

    def alive_and_told() -> None:
        heartbeat(stage)
        stage.command(node(1, 5, (1, 2)), version=1, assigned=(1, 2))

    assert after_the_lag_time(leaves_within(stage, 20_000, alive_and_told))


@pytest.mark.parametrize("hangs", ["append", "flush", "flush, and it continues writing"])
def test_a_leader_whose_disk_hangs_resigns_though_its_follower_has_every_record(hangs: str) -> None:
    stage = flushing()
    reports(stage, 2, 1, flushed=1)
    assert leaves_within(stage, 3_000, lambda: heartbeat(stage)) is None
    stage.produce()
    if hangs.startswith("flush"):
        stage.appended(2)
        stage.disk_answers()
        reports(stage, 2, 2, flushed=2)
    began = stage.now
    while not stage.got(fx.ResignLeadership):
        heartbeat(stage)
        stage.command(node(1, 5, (1, 2)), version=1, assigned=(1, 2))
        if "writing" in hangs:
            stage.write()
            stage.disk_answers()
        stage.feed(ev.Tick(), after_ms=100)
        assert not stage.got(fx.WriteIsr)
        assert stage.now - began <= LAG_MAX_MS / 2 + A_CHECK_MS
    assert stage.now - began >= LAG_MAX_MS / 2


def test_a_follower_that_has_flushed_everything_or_keeps_flushing_stays_in_sync() -> None:
    stage = flushing()
    reports(stage, 2, 1, flushed=1)
    assert leaves_within(stage, 30_000, lambda: heartbeat(stage)) is None
    end = 1

    def always_one_behind() -> None:
        nonlocal end
        stage.write()
        end += 1
        flushed(stage, end)
        reports(stage, 2, end, flushed=end - 1)

    assert leaves_within(stage, 30_000, always_one_behind) is None
    assert after_the_lag_time(leaves_within(stage, 20_000, lambda: reports(stage, 2, end, flushed=end - 1)))


# -- joining ---------------------------------------------------------------------------------------------------


def outside(**topic_configs: str) -> Stage:
    """A leader alone in sync that must not admit broker 2, though that follower has every record."""
    stage = Stage()
    stage.topic_configs = {key.replace("_", "."): value for key, value in topic_configs.items()}
    stage.command(node(1, 5, (1,)), suspected=(2,))
    stage.opened()
    fetches(stage, 2, 0, flushed=0)
    stage.write()
    flushed(stage, 1)
    stage.disk_answers()
    reports(stage, 2, 1, flushed=1)
    assert not stage.got(fx.WriteIsr)
    return stage


def is_trusted_again(stage: Stage) -> None:
    stage.command(node(1, 5, (1,)), version=1)


def test_a_replica_joins_only_when_it_has_reached_the_high_watermark() -> None:
    stage = Stage().leads((1,))
    stage.write(batch(5))
    stage.fetches(2, 0)
    stage.disk_answers()
    stage.write(batch(3))
    stage.reports(2, 5)
    assert stage.high_watermark() == 8
    assert not stage.got(fx.WriteIsr), "the follower has the old log end, and lacks records committed since"
    stage.reports(2, 8)
    assert stage.one(fx.WriteIsr).joining == {2: 12}


def test_a_silent_replica_that_is_no_longer_suspected_joins_with_its_next_message() -> None:
    stage = outside()
    assert leaves_within(stage, LAG_MAX_MS + 1_000) is None
    is_trusted_again(stage)
    assert not stage.got(fx.WriteIsr)
    heartbeat(stage)
    for _ in range(A_CHECK_MS // 100):
        if not stage.got(fx.WriteIsr):
            stage.feed(ev.Tick(), after_ms=100)
    assert stage.one(fx.WriteIsr).joining == {2: 12}


def test_a_follower_cannot_join_by_a_stream_of_an_earlier_registration() -> None:
    stage = outside()
    anew = BrokerRegistration(2, "host2", 9192, broker_epoch=20)
    stage.feed(ev.LeaderAndIsrArrived(1, LeaderAndIsrCommand(9, 1, 11, (), (anew,), frozenset({2}))))
    is_trusted_again(stage)
    assert not stage.got(fx.WriteIsr)


def test_a_replica_whose_flushes_hang_does_not_join_though_it_has_flushed_every_committed_record() -> None:
    stage = outside(flush_policy="group-commit")
    stage.write()
    stage.disk_answers()
    assert stage.high_watermark() == 1
    assert leaves_within(stage, LAG_MAX_MS // 3, lambda: reports(stage, 2, 2, flushed=1)) is None
    stage.now += LAG_MAX_MS
    reports(stage, 2, 2, flushed=1)
    is_trusted_again(stage)
    assert not stage.got(fx.WriteIsr)
    reports(stage, 2, 2, flushed=2)
    assert stage.one(fx.WriteIsr).joining == {2: 12}
