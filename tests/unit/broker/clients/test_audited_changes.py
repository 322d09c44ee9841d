# SPDX-License-Identifier: Apache-2.0
"""The audit log has a line of each change at a broker, even if the change fails, or its caller cancels the call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.broker.clients.service import BrokerService
from tidemark.broker.groups.service import GroupService
from tidemark.broker.transactions.service import TransactionService
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.access import audited
from tidemark.v1 import alter_log_dirs_pb2, delete_records_pb2
from tidemark.v1 import group_service_pb2 as group_pb
from tidemark.v1 import transaction_service_pb2 as transaction_pb

from tests.fakes.contexts import PlainContext
from tests.refusals import raises_code
from tests.turns import turns


class Context(PlainContext):
    """The context of a call over IPv4."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


CONTEXT: Any = Context()
Work = Callable[..., Awaitable[Any]]


def broker_service(work: Work) -> BrokerService:
    made = BrokerService.__new__(BrokerService)
    made._delete_records = SimpleNamespace(delete=work)  # type: ignore[assignment]
    made._dir_moves = SimpleNamespace(alter=work)  # type: ignore[assignment]
    return made


def group_service(work: Work) -> GroupService:
    shard = SimpleNamespace(change=work)

    async def resolve(offsets: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        return {}, {}

    groups: Any = SimpleNamespace(shard_of=lambda group_id: shard)
    offsets: Any = SimpleNamespace(resolve=resolve)
    return GroupService(groups, offsets, work)  # type: ignore[arg-type]


def transaction_service(work: Work) -> TransactionService:
    made = TransactionService.__new__(TransactionService)
    made._requests = SimpleNamespace(change=work)  # type: ignore[assignment]
    return made


CALLS: dict[str, Callable[[Work], Awaitable[Any]]] = {
    "DeleteRecords": lambda work: broker_service(work).DeleteRecords(
        delete_records_pb2.DeleteRecordsRequest(topic="t"), CONTEXT
    ),
    "AlterReplicaLogDirs": lambda work: broker_service(work).AlterReplicaLogDirs(
        alter_log_dirs_pb2.AlterReplicaLogDirsRequest(), CONTEXT
    ),
    "AlterGroupOffsets": lambda work: group_service(work).AlterGroupOffsets(
        group_pb.AlterGroupOffsetsRequest(group_id="g"), CONTEXT
    ),
    "DeleteGroup": lambda work: group_service(work).DeleteGroup(group_pb.DeleteGroupRequest(group_id="g"), CONTEXT),
    "DeleteGroupOffsets": lambda work: group_service(work).DeleteGroupOffsets(
        group_pb.DeleteGroupOffsetsRequest(group_id="g"), CONTEXT
    ),
    "AbortTransaction": lambda work: transaction_service(work).AbortTransaction(
        transaction_pb.AbortTransactionRequest(transactional_id="x"), CONTEXT
    ),
}


@pytest.mark.parametrize("method", CALLS)
async def test_a_change_whose_caller_leaves_has_a_line(method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemark.audit")

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    call = asyncio.ensure_future(CALLS[method](never))
    await turns()
    call.cancel()
    await asyncio.wait({call})
    (line,) = caplog.records
    assert (line.getMessage(), vars(line)["outcome"]) == (method, "CANCELLED")


@pytest.mark.parametrize("method", CALLS)
async def test_a_change_that_fails_has_a_line_with_its_code(method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemark.audit")

    async def late(*_: Any, **__: Any) -> Any:
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the change may still be made")

    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        await CALLS[method](late)
    (line,) = caplog.records
    assert (line.getMessage(), vars(line)["outcome"]) == (method, "REQUEST_TIMED_OUT")


def test_a_line_has_the_beginning_of_long_facts(caplog: pytest.LogCaptureFixture) -> None:
    """A caller may send a name of megabytes, or thousands of partitions."""
    caplog.set_level(logging.INFO, "tidemark.audit")
    configs = {str(number): "v" * 5000 for number in range(500)}
    with audited("CreateTopic", CONTEXT, {"topic": "t" * 5000, "configs": configs, "refused": 2, "typed": True}):
        pass
    with audited("ElectLeaders", CONTEXT, {"partitions": [f"t-{number}" for number in range(5000)]}):
        pass
    created, elected = map(vars, caplog.records)
    assert created["topic"] == "t" * 1000 + "..."
    assert (len(created["configs"]), set(map(len, created["configs"].values()))) == (100, {1003})
    assert (created["refused"], created["typed"]) == (2, True)
    assert elected["partitions"][98:] == ["t-98", "t-99", "... and 4900 more"]
