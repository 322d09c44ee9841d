# SPDX-License-Identifier: Apache-2.0
"""Random worlds with requested elections: every request ends, and every new lineage has its report."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tidemark.core.controller import events as ev
from tidemark.core.controller.requested_elections import EXPIRES_MS
from tidemark.model import NO_LEADER, REQUESTED_ELECTIONS, ElectionKind, TopicPartition, UncleanElection

from tests.unit.core.controller.test_controller_random import STEPS, RandomWorld, live


class AskingWorld(RandomWorld):
    """Elections are requested besides, of existing and unknown partitions, repeatedly."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: dict[str, tuple[TopicPartition, ...]] = {}
        self.given: set[tuple[ElectionKind, int]] = set()

    def step(self) -> None:
        if self.random.random() < 0.3:
            self._an_operator_asks()
        if self.random.random() < 0.05:
            self._power_fails()
        for _ in range(3):
            self._answer_something()
        super().step()

    def _power_fails(self) -> None:
        """All replicas of one partition lose their unsynced records, and return."""
        if self.states:
            partition = self.random.choice(sorted(self.states))
            for broker in self.topics[partition.topic].partitions[partition.partition]:
                self.register(broker, clean=False)

    def _an_operator_asks(self) -> None:
        leaderless = [one for one, found in self.states.items() if found.state.leader == NO_LEADER]
        pointed = leaderless and self.random.random() < 0.8
        kind = ElectionKind.LAST_KNOWN if pointed else self.random.choice(REQUESTED_ELECTIONS)
        some = sorted(leaderless if pointed else self.states)
        chosen = self.random.sample(some, min(len(some), self.random.randint(1, 3)))
        if self.random.random() < 0.1:
            chosen.append(TopicPartition("nowhere", 0))
        if kind in self.requests and self.random.random() < 0.8:
            return  # most operators wait until the node is deleted
        request_id = f"r{len(self.asked)}"
        self.asked[request_id] = tuple(chosen)
        self.request(kind, *chosen, request_id=request_id)

    def check(self) -> None:
        super().check()
        of_partition: defaultdict[tuple[str, TopicPartition], list[UncleanElection]] = defaultdict(list)
        of_request: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for one in self.reports:
            of_partition[one.topic_id, one.partition].append(one)
            if one.request_id:
                of_request[one.request_id].append(one.partition)
        for reports in of_partition.values():
            lineages = [one.lineage for one in reports]
            assert len(lineages) == len(set(lineages)), "two reports of one lineage"
        for elected in of_request.values():
            assert len(elected) == len(set(elected)), "elected twice for one request"
        for partition, (state, _) in self.states.items():
            topic = self.topics[partition.topic]
            mine = of_partition.get((topic.topic_id, partition), [])
            assert [one.lineage for one in mine] == list(range(1, state.lineage + 1)), "a lineage without its report"
            for one in mine:
                allowed = topic.configs["unclean"] == "true" or len(topic.partitions[partition.partition]) == 1
                assert allowed or partition in self.asked[one.request_id], "an unclean election that was not allowed"

    def rest(self) -> None:
        for kind in ElectionKind:
            self.happens(ev.ElectionsRequested(kind, self.requests.get(kind)))
        super().rest()
        self.passes(EXPIRES_MS)  # a request may wait for a replica that reports no log end
        super().rest()

    def check_at_rest(self) -> None:
        super().check_at_rest()
        assert not self.requests, "a request that never ends"


@pytest.mark.parametrize("batch", range(5))
def test_in_random_worlds_requested_elections_keep_the_rules_and_end(batch: int) -> None:
    worlds = live(AskingWorld, range(batch * 20, batch * 20 + 20), 2 * STEPS)
    asked_for = sum(one.request_id != "" for world in worlds for one in world.reports)
    assert asked_for >= 10, "hardly a world of this batch has held such an election"
