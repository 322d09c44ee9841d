# SPDX-License-Identifier: Apache-2.0
"""Codecs made from tables: checked when they are made, and exact about unset fields."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tidemark.model import ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc.codecs.message import LIST, OPTIONAL_ERROR, PARTITION, SPREAD_IDENTITY, Codec, Field, enum
from tidemark.v1 import admin_reassignments_pb2, controller_service_pb2

T0 = TopicPartition("t", 0)


class Ended(NamedTuple):
    partition: TopicPartition
    replicas: tuple[int, ...]
    error: TidemarkError | None = None


class Question(NamedTuple):
    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: int = 0


class Short(NamedTuple):
    partition: TopicPartition


def test_an_unset_field_is_none_and_a_list_a_tuple() -> None:
    codec = Codec(
        Ended, admin_reassignments_pb2.EndedReassignment, partition=PARTITION, replicas=LIST, error=OPTIONAL_ERROR
    )
    message = codec.to_proto(Ended(T0, (2, 1)))
    assert not message.HasField("error")
    assert codec.from_proto(message) == Ended(T0, (2, 1))
    assert codec.from_protos(codec.to_protos([Ended(T0, ())])) == [Ended(T0, ())]


def test_an_attribute_may_be_spread_over_several_fields() -> None:
    codec = Codec(Question, controller_service_pb2.ReplicaQuestion, partition=PARTITION, identity=SPREAD_IDENTITY)
    message = codec.to_proto(Question(T0, ReplicaIdentity("id", "first"), 7))
    assert (message.topic_id, message.incarnation, message.leader_epoch) == ("id", "first", 7)
    assert codec.from_proto(message) == Question(T0, ReplicaIdentity("id", "first"), 7)


def test_a_table_that_leaves_a_field_of_the_message_out_is_refused() -> None:
    with pytest.raises(AssertionError, match="EndedReassignment has other fields"):
        Codec(Short, admin_reassignments_pb2.EndedReassignment, partition=PARTITION)


def test_a_table_with_an_attribute_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(AssertionError, match="Short lacks attributes"):
        Codec(Short, admin_reassignments_pb2.EndedReassignment, partition=PARTITION, replicas=LIST)


def test_an_omitted_attribute_is_read_as_its_default() -> None:
    codec = Codec(
        Question,
        admin_reassignments_pb2.EndedReassignment,
        omitted=("leader_epoch",),
        partition=PARTITION,
        identity=Field(tuple, lambda replicas, error: ReplicaIdentity("", ""), names=("replicas", "error")),
    )
    message = admin_reassignments_pb2.EndedReassignment()
    assert codec.from_proto(message).leader_epoch == 0


def test_an_enumeration_reads_numbers_of_later_versions_as_the_stated_member() -> None:
    field = enum({"a": 1, "b": 2}, otherwise="a")
    assert [field.to_proto("b"), field.from_proto(2), field.from_proto(9)] == [2, "b", "a"]
