# SPDX-License-Identifier: Apache-2.0
"""Leader election in random states of one partition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.controller.leader_election import BrokerFacts, PartitionFacts, decide
from tidemark.model import NO_LEADER, BrokerId, LeaderAndIsr, LeaderEpoch

from tests.unit.core.controller.elections.test_leader_election import brokers, entry

_IDS = st.integers(0, 3)
_ENTRIES = st.dictionaries(_IDS, st.integers(0, 2), max_size=4).map(
    lambda found: tuple(entry(broker, epoch) for broker, epoch in found.items())
)
_BROKERS = st.builds(
    lambda live, unclean, suspected: brokers(*live, epochs=live, unclean=unclean, suspected=suspected),
    st.dictionaries(_IDS, st.integers(0, 2)),
    st.dictionaries(_IDS, st.integers(0, 2)),
    st.lists(_IDS, unique=True),
)


@st.composite
def _states(draw: st.DrawFn) -> PartitionFacts:
    assigned = tuple(BrokerId(one) for one in draw(st.lists(_IDS, min_size=1, max_size=4, unique=True)))
    allowed = draw(st.booleans())
    min_isr = draw(st.integers(1, len(assigned)))
    if draw(st.integers(0, 5)) == 0:
        return PartitionFacts(assigned, min_isr, None, allowed)
    among = [one for one in draw(_ENTRIES) if one.broker_id in assigned]
    isr = tuple(among[: draw(st.integers(0, len(among)))])
    elr = tuple(among[len(isr) :]) if len(isr) < min_isr else ()
    leader = draw(st.sampled_from(isr)).broker_id if isr else NO_LEADER
    state = LeaderAndIsr(
        leader, LeaderEpoch(draw(st.integers(0, 5))), isr, elr, last_known=draw(_ENTRIES), min_isr=min_isr
    )
    return PartitionFacts(assigned, min_isr, state, allowed)


@settings(max_examples=600, deadline=None)
@given(_states(), _BROKERS)
def test_in_random_states_a_decision_keeps_the_rules_and_is_final(facts: PartitionFacts, seen: BrokerFacts) -> None:
    decision = decide(facts, seen)
    if decision is None:
        return
    new, old = decision.state, facts.state
    assert decide(facts._replace(state=new), seen) is None
    isr = set(new.isr)
    assert len({one.broker_id for one in isr}) == len(new.isr)
    assert new.leader in new.isr_ids if new.leader != NO_LEADER else not new.isr
    assert all(seen.live.get(one.broker_id) == one.broker_epoch for one in isr), "the dead are in sync"
    assert not any(seen.is_void(one) for one in (*new.isr, *new.elr))
    assert not {one.broker_id for one in new.elr} & set(new.isr_ids)
    assert len(new.isr) < new.min_isr or not new.elr
    if old is None:
        assert new.leader_epoch == 0
        return
    same_leadership = (old.leader, old.leader_epoch) == (new.leader, new.leader_epoch)
    assert same_leadership or new.leader_epoch == old.leader_epoch + (
        new.leader != NO_LEADER or old.leader != new.leader
    )
    if decision.unclean:
        assert new.lineage == old.lineage + 1
        return
    assert new.lineage == old.lineage
    trusted = {one.broker_id for one in (*old.isr, *old.elr) if not seen.is_void(one)}
    assert set(new.isr_ids) <= trusted, "an untrusted replica is in the ISR"
    if len(new.isr) < new.min_isr:
        assert trusted <= set(new.isr_ids) | {one.broker_id for one in new.elr}, (
            "a trusted replica is lost below min ISR"
        )
    if new.leader not in (NO_LEADER, old.leader):
        assert decision.checked == {new.leader: seen.live[new.leader]}
