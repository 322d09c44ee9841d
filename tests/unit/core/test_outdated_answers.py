# SPDX-License-Identifier: Apache-2.0
"""A client gets the answers of brokers in any order: an older answer removes no fact of a newer one (rule K2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, taken_over
from tidemark.errors import unknown_topic
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, LeaderEpoch, TidemarkError

TOPIC = "t"
PARTITION = PartitionView(0, BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), "i")
KNOWN = TopicView(TOPIC, "id", 5, 5, {0: PARTITION}, partition_count=1)
UNKNOWN = TopicView(TOPIC, "", error=unknown_topic(TOPIC))
HIDDEN = TopicView(TOPIC, "", error=TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "znodes do not parse"))


def answer(topic: TopicView | None, sequence: int, *, epoch: int = 1, brokers: int = 1) -> ClusterView:
    return ClusterView(
        "cluster",
        controller_epoch=ControllerEpoch(epoch),
        brokers={BrokerId(one): BrokerRegistration(BrokerId(one), "host", 1) for one in range(brokers)},
        topics={} if topic is None else {TOPIC: topic},
        sequence=sequence,
    )


def after(*answers: ClusterView) -> ClusterView:
    view = ClusterView()
    for one in answers:
        view = taken_over(view, one)
    return view


def error_of(view: ClusterView) -> str | None:
    error = view.topics[TOPIC].error
    return None if error is None else str(error.code)


@pytest.mark.parametrize("complete", [False, True], ids=["an answer", "the first message of a stream"])
def test_a_broker_that_has_not_heard_of_a_topic_yet_hides_the_topic_from_no_client(complete: bool) -> None:
    behind = replace(answer(UNKNOWN, 6), complete=complete)
    assert error_of(after(answer(KNOWN, 7), behind)) is None
    assert error_of(after(answer(KNOWN, 7), behind, answer(UNKNOWN, 8))) == "UNKNOWN_TOPIC", "it was deleted"


def test_a_broker_that_has_not_heard_of_a_deletion_brings_no_topic_back() -> None:
    assert error_of(after(answer(KNOWN, 7), answer(UNKNOWN, 9), answer(KNOWN, 8))) == "UNKNOWN_TOPIC"
    assert error_of(after(answer(UNKNOWN, 6), answer(KNOWN, 7))) is None
    deletion = replace(answer(None, 9), deleted_topics=(TOPIC,))
    assert TOPIC not in after(answer(KNOWN, 7), deletion, answer(KNOWN, 8)).topics
    assert error_of(after(answer(KNOWN, 7), deletion, answer(KNOWN, 10))) is None


def test_a_broker_that_is_behind_does_not_delete_a_recreated_topic() -> None:
    recreated = replace(KNOWN, topic_id="new", created_zxid=9, modified_zxid=9)
    deletion = replace(answer(None, 9), deleted_topics=(TOPIC,))
    assert after(answer(recreated, 10), deletion).topics[TOPIC].topic_id == "new"
    assert after(answer(recreated, 10), answer(UNKNOWN, 9), answer(KNOWN, 7)).topics[TOPIC].topic_id == "new"


def test_a_complete_view_that_is_behind_drops_no_newer_topic() -> None:
    assert error_of(after(answer(KNOWN, 7), replace(answer(None, 6), complete=True))) is None
    assert TOPIC not in after(answer(KNOWN, 7), replace(answer(None, 8), complete=True)).topics


def test_a_broker_that_cannot_describe_a_topic_leaves_the_known_metadata() -> None:
    assert error_of(after(answer(KNOWN, 7), answer(HIDDEN, 9))) is None
    assert error_of(after(answer(UNKNOWN, 7), answer(HIDDEN, 8), answer(KNOWN, 6))) is None


def test_a_broker_that_lacks_older_changes_deletes_no_topic() -> None:
    """The controller sends the changes of more than a thousand partitions in several messages."""
    lacking = replace(answer(UNKNOWN, 9), more_parts=True)
    assert error_of(after(answer(KNOWN, 7), lacking)) is None
    assert error_of(after(lacking)) == "UNKNOWN_TOPIC"
    assert error_of(after(replace(answer(KNOWN, 9), more_parts=True), answer(UNKNOWN, 8))) is None


def test_a_broker_that_is_behind_forgets_no_registered_broker() -> None:
    assert len(after(answer(KNOWN, 7, brokers=3), answer(KNOWN, 6, brokers=2)).brokers) == 3
    assert len(after(answer(KNOWN, 7, brokers=3), answer(KNOWN, 8, brokers=2)).brokers) == 2


def test_the_answers_of_a_new_controller_are_newer_than_all_before() -> None:
    assert error_of(after(answer(KNOWN, 900), answer(UNKNOWN, 3, epoch=2))) == "UNKNOWN_TOPIC"
    assert error_of(after(answer(UNKNOWN, 900), answer(KNOWN, 3, epoch=2))) is None


def test_a_client_ignores_a_restored_older_tree_until_its_restart() -> None:
    """Such an answer may also be of a broker without a controller: docs/backup.md states the restart."""
    moved = replace(PARTITION, leader=BrokerId(1), leader_epoch=LeaderEpoch(9))
    restored = answer(replace(KNOWN, partitions={0: moved}), 900, epoch=4)
    assert after(answer(KNOWN, 7, epoch=5), restored).topics[TOPIC].partitions[0].leader == 0
    assert after(restored).topics[TOPIC].partitions[0].leader == 1


def test_an_answer_without_a_number_replaces_the_known_metadata() -> None:
    """It is of a broker of an earlier version, and may be the newest one."""
    assert error_of(after(answer(KNOWN, 7), answer(UNKNOWN, 0))) == "UNKNOWN_TOPIC"


def test_a_broker_that_remembers_few_batches_counts_while_it_is_away_until_it_is_back_with_more() -> None:
    """The broker may return as leader, and then refuses retries of batches that it has stored and forgotten."""

    def brokers(*remembered: int | None) -> ClusterView:
        features = [None if count is None else {"remembered_batches": count} for count in remembered]
        live = {
            BrokerId(one): BrokerRegistration(BrokerId(one), "host", 9000 + one, features=found)
            for one, found in enumerate(features)
            if found is not None
        }
        return ClusterView(cluster_id="shop", brokers=live, controller_epoch=ControllerEpoch(1))

    old, gone, new = brokers(10, 5), brokers(10, None), brokers(10, 10)
    assert after(old).remembered_batches == 5
    assert after(gone).remembered_batches == 10
    assert after(old, gone).remembered_batches == 5
    assert after(old, gone, gone, new).remembered_batches == 10
    assert after(old, gone, new, gone).remembered_batches == 10
    assert after(old, replace(gone, cluster_id="bank")).remembered_batches == 10
