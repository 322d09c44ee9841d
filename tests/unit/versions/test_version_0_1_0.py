# SPDX-License-Identifier: Apache-2.0
"""Version 0.1.0: its calls and ZooKeeper nodes, since it runs together with this version during an upgrade, and its
names.
"""

from __future__ import annotations

from pathlib import Path

import tidemark.client
from tidemark.client import ReplicaLogDir
from tidemark.core.reassignment.request import parse_reassignments
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    PartitionReassignment,
    TopicDescription,
    TopicPartition,
)
from tidemark.zookeeper import codecs

from tests.unit.versions.contract import contract, parse

NAMES = """
CLUSTER_DEFAULT AdminClient BatchTooLargeError BrokerNotAvailableError ClientClosedError ConfigKind
ConfigResource Consumer ConsumerRecord CoordinatorNotAvailableError CorruptBatchError ErrorCode
FencedInstanceError FencedMemberError GroupFullError GroupNotEmptyError GroupNotFoundError Groups
InconsistentGroupProtocolError InternalError InvalidConfigError InvalidGroupIdError InvalidRecordError
InvalidRequestError InvalidTopicNameError LogTruncatedError NotEnoughReplicasError NotLeaderError
OffsetNotAvailableError OffsetOutOfRangeError PartitionBatch PartitionNotAssignedError Partitioner Producer
ProducerFencedError ProducerSequenceError RecordMetadata ReplicaPlace RequestTimedOutError SendHandle
StorageError TableHandle TidemarkError Timestamp TopicAlreadyExistsError TopicPartition TopicRecreatedError
UnknownPartitionError UnknownTopicError UnsupportedAssignorError
"""
"""The names of tidemark.client."""
HELD = Path(__file__).with_name("contract_0_1_0.txt")
ZERO, ONE, TWO = BrokerId(0), BrokerId(1), BrokerId(2)


def test_messages_and_calls_only_gain_fields_and_a_removed_field_is_reserved() -> None:
    now, gone = contract(), []
    for name, parts in parse(HELD.read_text()).items():
        kept = now.get(name, set())
        gone += [f"{name}: {one}" for one in parts - kept if f"{one.split(' ')[0]} reserved" not in kept]
    assert gone == []


def test_the_client_keeps_its_names() -> None:
    """An application that imports a removed name ends at its start."""
    assert [name for name in NAMES.split() if not hasattr(tidemark.client, name)] == []
    assert tidemark.client.ReplicaPlace is ReplicaLogDir


def test_states_and_registrations_of_the_older_version_are_read() -> None:
    state = (
        b'{"version":1,"leader":1,"leader_epoch":3,"isr":[[1,4],[2,0]],"elr":[[0,7]],"last_known":[[0,7]],"min_isr":2,'
        b'"lineage":1,"sealed":true,"controller_epoch":5}'
    )
    lost = (IsrEntry(ZERO, BrokerEpoch(7)),)
    isr = (IsrEntry(ONE, BrokerEpoch(4)), IsrEntry(TWO, BrokerEpoch(0)))
    assert codecs.decode_state("/s", state) == LeaderAndIsr(
        ONE, LeaderEpoch(3), isr, lost, lost, 2, 1, True, ControllerEpoch(5)
    )
    registration = (
        b'{"version":1,"host":"b1","port":9192,"rack":"r","directories":["d1","d2"],"boot_id":"boot","broker_epoch":4,'
        b'"features":{"protocol":1}}'
    )
    broker = codecs.decode_registration("/r", registration, ONE)
    assert broker == BrokerRegistration(
        ONE, "b1", 9192, BrokerEpoch(4), "r", ("d1", "d2"), "boot", features={"protocol": 1}
    )
    assert not broker.stores_typed
    assert not broker.has_transactions
    epoch = b'{"version":1,"directories":["d1"],"unclean_at":3,"lost_at":2}'
    assert codecs.decode_broker_epoch("/e", epoch, 4) == BrokerEpochRecord(
        BrokerEpoch(4), ("d1",), unclean_at=BrokerEpoch(3), lost_at=BrokerEpoch(2)
    )
    assert codecs.decode_controller("/c", b'{"version":1,"id":100,"address":"h:9193"}') == (100, "h:9193", -1)


def test_topics_and_requests_of_the_older_version_are_read() -> None:
    topic = (
        b'{"version":1,"topic_id":"id","partitions":{"0":[0,1]},"incarnations":{"0":"i0"},"adding":{"0":[1]},'
        b'"removing":{"0":[2]},"original":{"0":[0,2]}}'
    )
    assert codecs.decode_topic("/t", topic, "flights") == TopicDescription(
        "flights", "id", {0: (ZERO, ONE)}, {0: "i0"}, {0: (ONE,)}, {0: (TWO,)}, {0: (ZERO, TWO)}
    )
    elections = b'{"version":1,"partitions":[{"topic":"flights","partition":0}],"request_id":"r1"}'
    partition = TopicPartition("flights", 0)
    assert codecs.decode_elections("/l", elections) == ((partition,), "r1", False)
    moves = (
        b'{"version":1,"partitions":[{"topic":"flights","partition":0,"replicas":[2,1],"log_dirs":["any","/a"],'
        b'"throttle_bytes_per_s":50,"request_id":"r1"}]}'
    )
    wanted = PartitionReassignment(partition, (TWO, ONE), ("any", "/a"), 50, request_id="r1")
    assert parse_reassignments(moves) == ((wanted,), ())
