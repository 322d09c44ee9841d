# SPDX-License-Identifier: Apache-2.0
"""Log directories that reassignments name (M1, M3): when they are sent, and when such an entry ends."""

from __future__ import annotations

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.reassignment.log_dir_placement import LOG_DIR_PENDING, PRESENT_LOG_DIR
from tidemark.model import BrokerId, ErrorCode, TidemarkError

from tests.unit.core.controller.worlds.controller_world import World
from tests.unit.core.controller.worlds.reassignment_world import P, a_world, goes_on_to, is_whole, node


def directories(world: World) -> dict[int, str]:
    """The log directory that each broker was sent last."""
    told = {int(broker): knows.commands.get(P) for broker, knows in world.brokers.items()}
    return {broker: command.log_dir for broker, command in told.items() if command is not None and command.log_dir}


def commands(world: World, broker: int) -> list[fx.SendLeaderAndIsr]:
    return [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == broker]


def test_each_target_broker_is_sent_its_log_directory_before_it_creates_the_replica() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 3, 4, 5, log_dirs=("/data/3", "any", "uuid-5"))
    world.answer(goes_on_to(world, fx.WriteTopic))
    first = commands(world, 5)
    assert [one.partitions[0].log_dir for effect in first for one in effect.commands] == ["uuid-5"]
    world.settle()
    assert directories(world) == {3: "/data/3", 5: "uuid-5"}
    world.settle(catching_up=True)
    is_whole(world)
    assert not world.asked.refusals


def test_an_entry_with_new_log_directories_only_ends_once_its_brokers_acknowledged() -> None:
    world = a_world(1, 2, 3)
    before = world.topics["orders"], world.state("orders")
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "/data/3"))
    told = {one.broker: one for one in world.waiting(fx.SendLeaderAndIsr)}
    assert {2, 3} <= told.keys()
    for broker, effect in told.items():
        assert not world.waiting(fx.FinishReassignments), f"before the command to broker {broker}"
        world.pending.remove(effect)
        world.answer(effect)
    world.settle()
    assert directories(world) == {2: "/data/2", 3: "/data/3"}
    assert (world.topics["orders"], world.state("orders")) == before
    is_whole(world)
    assert not world.asked.refusals


def test_a_log_directory_is_sent_again_until_its_broker_acknowledges() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "any"))
    for effect in commands(world, 2):
        world.pending.remove(effect)
        world.fail(effect)
    while world.pending:
        world.answer(world.pending.pop(0))
    assert P in world.asked.moves
    world.settle()
    assert directories(world) == {2: "/data/2"}
    is_whole(world)


def test_an_entry_waits_for_a_broker_that_failed_before_it_acknowledged() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "any"))
    world.pending = [one for one in world.pending if one not in commands(world, 2)]
    world.down(2)
    world.settle()
    assert P in world.asked.moves
    world.up(2)
    world.settle(catching_up=True)
    assert directories(world) == {2: "/data/2"}
    is_whole(world)


def test_a_new_controller_sends_log_directories_again() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, log_dirs=("/data/4", "/data/2", "any"))
    world.answer(goes_on_to(world, fx.WriteTopic))
    world.fails_over()
    world.settle()
    assert directories(world) == {4: "/data/4", 2: "/data/2"}
    world.fails_over()
    world.settle(catching_up=True)
    is_whole(world)


def test_a_new_controller_ends_an_entry_with_log_directories_only() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("/data/1", "any", "any"))
    world.fails_over()
    assert P in world.asked.moves
    world.settle()
    assert directories(world) == {1: "/data/1"}
    is_whole(world)


def test_a_queued_reassignment_names_no_log_directory_yet() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=0)
    world.move(P, 1, 2, 4, log_dirs=("/data/1", "any", "any"))
    world.settle()
    assert P in world.asked.moves
    assert directories(world) == {}


def test_after_the_reassignment_no_command_names_a_log_directory() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("/data/1", "any", "any"))
    world.settle()
    world.down(3)
    world.settle()
    assert directories(world) == {}


@pytest.mark.parametrize("failovers", [0, 1])
def test_a_cancelled_reassignment_ends_once_live_brokers_know_to_end_their_copies(failovers: int) -> None:
    """An admin service that is killed after it has cancelled the entry cannot ask the brokers."""
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, log_dirs=("/data/4", "/data/2", "/data/3"))
    world.answer(goes_on_to(world, fx.WriteTopic))
    world.settle()
    world.down(3)
    world.settle()
    world.cancel(P)
    for _ in range(failovers):
        world.fails_over()
    while world.pending:
        effect = world.pending.pop(0)
        if isinstance(effect, fx.SendLeaderAndIsr) and effect.broker == 2:
            world.fail(effect)
        else:
            world.answer(effect)
    assert P in world.asked.moves
    world.settle(catching_up=True)
    assert P not in world.asked.moves
    assert directories(world)[2] == PRESENT_LOG_DIR
    world.up(3)
    world.settle(catching_up=True)
    assert node(world)[0] == [1, 2, 3]
    assert not world.asked.refusals
    is_whole(world)


def test_a_cancelled_entry_with_new_log_directories_only_ends_once_live_brokers_know_to_end_their_copies() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "/data/3"))
    world.pending = [one for one in world.pending if one not in commands(world, 3)]
    world.down(3)
    world.settle()
    assert P in world.asked.moves
    world.cancel(P)
    assert not world.waiting(fx.FinishReassignments)
    world.settle()
    assert directories(world) == {2: PRESENT_LOG_DIR}
    world.up(3)
    world.settle(catching_up=True)
    is_whole(world)


def test_after_a_cancelled_reassignment_no_command_names_a_log_directory() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, log_dirs=("/data/4", "/data/2", "any"))
    world.answer(goes_on_to(world, fx.WriteTopic))
    world.settle()
    world.cancel(P)
    world.settle(catching_up=True)
    world.down(3)
    world.settle()
    assert directories(world) == {}


def test_log_directories_changed_by_hand_are_sent() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, log_dirs=("/data/4", "any", "any"))
    world.answer(goes_on_to(world, fx.WriteTopic))
    world.settle()
    world.move(P, 4, 2, 3, log_dirs=("/disk/4", "any", "/disk/3"))
    world.settle()
    assert directories(world) == {4: "/disk/4", 3: "/disk/3"}


def test_the_first_command_of_a_new_controller_names_log_directories_and_throttles() -> None:
    """A target that was down creates its replica by this command: in the named directory, within the throttle."""
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, log_dirs=("/data/4", "/data/2", "any"), throttle_bytes_per_s=1000)
    world.answer(goes_on_to(world, fx.WriteTopic))
    world.fails_over()
    first = {broker: commands(world, broker)[0].commands[0].partitions[0] for broker in (1, 2, 3, 4)}
    assert {broker: one.log_dir for broker, one in first.items()} == {1: "", 2: "/data/2", 3: "", 4: "/data/4"}
    assert {one.throttle_bytes_per_s for one in first.values()} == {1000}
    world.settle(catching_up=True)
    is_whole(world)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.LOG_DIR_OFFLINE, ErrorCode.DISK_FULL])
def test_a_rejected_log_directory_is_reported_once_and_delays_nothing(code: ErrorCode, *, leads: bool) -> None:
    broker = BrokerId(1 if leads else 2)
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("/data/none", "/data/none", "any"), request_id="mine")
    sent = commands(world, broker)
    assert sent
    for _ in range(2):
        refused = ((P, TidemarkError(code, "there is /data/1 and /data/2")),)
        world.happens(ev.ControlAnswered(broker, sent[0].request_id, None, refused))
    world.pending.remove(sent[0])
    world.settle()
    assert [(one.error.code, one.request_id) for one in world.asked.refusals] == [(code, "mine")]
    assert f"broker {broker} " in world.asked.refusals[0].error.message
    assert "/data/1 and /data/2" in world.asked.refusals[0].error.message
    is_whole(world)


def test_an_entry_waits_until_each_broker_has_begun_its_copies() -> None:
    """A broker that is killed before would not know the log directory any more."""
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "any"))
    pending = ((P, TidemarkError(LOG_DIR_PENDING, "no copy yet")),)
    for _ in range(3):
        (sent,) = commands(world, 2)
        world.pending.remove(sent)
        world.happens(ev.ControlAnswered(BrokerId(2), sent.request_id, None, pending))
        while world.pending:
            world.answer(world.pending.pop(0))
        assert P in world.asked.moves
        world.passes(100)
        assert not commands(world, 2), "not at once"
        world.passes(1000)
    world.down(2)
    world.up(2)
    world.settle(catching_up=True)
    assert directories(world) == {2: "/data/2"}
    is_whole(world)
    assert not world.asked.refusals


def test_a_log_directory_of_a_broker_that_is_not_live_is_refused() -> None:
    world = a_world(1, 2, 3)
    world.down(3)
    world.settle(catching_up=True)
    world.move(P, 1, 2, 3, log_dirs=("any", "any", "/data/3"))
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.BROKER_NOT_AVAILABLE]
    assert not world.asked.moves


def test_a_deleted_topic_ends_its_entries_with_log_directories() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 1, 2, 3, log_dirs=("any", "/data/2", "any"))
    world.pending = [one for one in world.pending if one not in commands(world, 2)]
    world.delete("orders")
    world.settle()
    assert not world.asked.moves
    world.topic("orders", (1, 2, 3), m="2")
    world.settle()
    assert directories(world) == {}
