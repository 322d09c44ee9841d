# SPDX-License-Identifier: Apache-2.0
"""A story of moves as lines that a person can follow: each move, and its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.core.messages import FollowerMessage, LeaderMessage
from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.state import ALL_BROKERS, DEAD, END, PLACE, State
from tests.exploration.model.turn import Move


def tell(cluster: Cluster, story: Sequence[tuple[Move, State]]) -> Iterator[str]:
    """The lines, from the first state on; the last move is the one that broke an invariant."""
    before = cluster.initial()
    yield f"   at first: {'; '.join(_facts(cluster, before))}; nothing is on its way"
    for number, (move, after) in enumerate(story, start=1):
        yield f"{number:2}. {_happened(cluster, before, move)}"
        changed = [fact for fact in _facts(cluster, after) if fact not in _facts(cluster, before)]
        if changed:
            yield f"      now {'; '.join(changed)}"
        before = after


def _name(place: int) -> str:
    return f"broker {place + 1}"


def _id(broker: int) -> int:
    return BROKERS.index(BrokerId(broker)) + 1 if broker in BROKERS else broker


def _members(entries: Sequence[IsrEntry]) -> str:
    return "{" + ", ".join(str(_id(entry.broker_id)) for entry in entries) + "}"


def _node(state: LeaderAndIsr) -> str:
    leader = f"leader {_id(state.leader)}" if state.leader >= 0 else "no leader"
    elr = f", ELR {_members(state.elr)}" if state.elr else ""
    return f"{leader}, epoch {state.leader_epoch}, ISR {_members(state.isr)}{elr}"


def _facts(cluster: Cluster, state: State) -> list[str]:
    node, version = cluster.brokers.values[state.node]
    facts = [f"the node states {_node(node)} (version {version})"]
    for place in ALL_BROKERS:
        log = ", ".join(f"{label}@{epoch}" for label, epoch in cluster.disks[state.disks[place]].records)
        core = state.cores[place]
        if core == DEAD:
            facts.append(f"{_name(place)} is dead, log [{log}]")
            continue
        view = cluster.brokers.views[core]
        role = f"leads in epoch {view.leader_epoch}" if view.leader_epoch is not None else "does not lead"
        facts.append(f"{_name(place)} {role}, log [{log}], high watermark {view.high_watermark}")
    return facts


def _happened(cluster: Cluster, state: State, move: Move) -> str:
    values = cluster.brokers.values
    match move:
        case ("up", follower, leader):
            message, _ = state.streams[PLACE[follower, leader]].up[0]
            said = "its stream ended" if message == END else _of_follower(values[message])
            return f"{_name(leader)} receives from {_name(follower)}: {said}"
        case ("down", follower, leader):
            message = state.streams[PLACE[follower, leader]].down[0]
            return f"{_name(follower)} receives from {_name(leader)}: {_of_leader(values[message])}"
        case ("decide", node):
            written = f"writes {_node(values[node].state)}" if node != state.node else "has nothing to write"
            return f"the controller {written}, and sends commands to the brokers concerned"
        case ("command", place):
            _, node, _, suspected = state.commands[place][0]
            doubts = f", suspected {[_id(one) for one in suspected]}" if suspected else ""
            return f"{_name(place)} receives {_node(values[node].state)} (version {values[node].version}){doubts}"
        case ("zookeeper", place, how):
            asked = state.asked[place]
            request = "to read the node" if asked[0] == "read isr" else f"to write {_node(values[asked[1]])}"
            return f"{_name(place)} has sent ZooKeeper a request {request} (from version {asked[2:3]}): ZooKeeper {how}"
        case ("answer", place):
            return f"{_name(place)} gets ZooKeeper's answer: {_answer(cluster, state, place)}"
        case ("rest",):
            return "no further move is possible"
    return _of_process(move)


def _answer(cluster: Cluster, state: State, place: int) -> str:
    answer = state.asked[place]
    if answer[0] == "isr read":
        return f"the node was {_node(cluster.brokers.values[answer[1]].state)}"
    if answer[0] == "written":
        return f"written as version {answer[1]}"
    return "none; the connection was lost" if answer[1] else "a conflict"


def _of_process(move: Move) -> str:
    kind, place, *rest = move
    match kind:
        case "produce":
            return f"a client sends the next batch to {_name(place)}"
        case "tick":
            return f"time passes at {_name(place)}"
        case "crash":
            files = "after it wrote" if rest[0] else "before it wrote"
            return f"{_name(place)} is killed, {files} its checkpoints of high watermark and epochs"
        case "crash all":
            files = "after the others wrote" if rest[0] else "before any of them wrote"
            return f"all brokers are killed, {files} their checkpoints, and {_name(place)} has lost its last batch"
        case "lag":
            return f"{_name(place)} has received nothing from broker {_id(rest[0])} for replica.lag.time.max.ms"
        case "heartbeat":
            return f"{_name(place)} gets a heartbeat of broker {_id(rest[0])}"
        case "break":
            return f"the stream from {_name(place)} to {_name(rest[0])} breaks"
    phrases = {
        "restart": "starts again and registers",
        "session ends": "has ended, and ZooKeeper ends its session",
        "expire": "runs, and its session ends",
        "learn": "is notified that its session has ended",
        "register": "registers again",
        "suspect": "is suspected by the controller",
        "trust": "is not suspected any more",
        "disk": "completes its next append or truncation",
    }
    return f"{_name(place)} {phrases[kind]}"


def _of_follower(message: FollowerMessage) -> str:
    said = [
        f"where does epoch {one.last_epoch} end in your log? (in epoch {one.current_leader_epoch})"
        for one in message.queries
    ]
    said += [
        f"send from {one.fetch_offset} on, after epoch {one.last_epoch} (in epoch {one.current_leader_epoch})"
        for one in message.positions
    ]
    said += [f"my log ends at {one.log_end_offset} (in epoch {one.current_leader_epoch})" for one in message.reports]
    said += [f"I leave because of epoch {one.newer_leader_epoch}" for one in message.stops]
    return "; ".join(said) or "a heartbeat"


def _of_leader(message: LeaderMessage) -> str:
    said = [
        f"epoch {one.leader_epoch} ends at {one.end_offset} (in epoch {one.current_leader_epoch})"
        for one in message.epoch_ends
    ]
    for chunk in message.chunks:
        batches = ", ".join(f"{int(one.data)}@{one.envelope.leader_epoch}" for one in chunk.batches)
        what = f"[{batches}] from {chunk.continues_from} on" if batches else "no records"
        said.append(f"{what}, high watermark {chunk.high_watermark} (in epoch {chunk.current_leader_epoch})")
    said += [f"refused: {one.code}" for one in message.refusals]
    return "; ".join(said) or "a heartbeat"
