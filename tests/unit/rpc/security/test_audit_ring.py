# SPDX-License-Identifier: Apache-2.0
"""The last lines of the audit log in memory, and their messages."""

from __future__ import annotations

import logging

import pytest
from tidemark.core.security.acls import Operation, topic
from tidemark.core.security.audit_lines import DENIED, FAILED, OK, AuditFilter, AuditLine, ServiceAudit
from tidemark.core.security.authorizer import Decision
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.codecs.audit import filter_from_proto, filter_to_proto, response_from_proto, response_to_proto
from tidemark.rpc.security import audit_ring
from tidemark.rpc.security.audit import Audit
from tidemark.rpc.security.audit_ring import FACT_CHARACTERS_MAX, AuditRing

NO_RULE = Decision(False, None, "no rule allows it")
ALICE = "User:token:alice"


@pytest.fixture
def ring() -> AuditRing:
    return AuditRing()


@pytest.fixture
def audit(ring: AuditRing) -> logging.Logger:
    made = logging.Logger("audit of a test", logging.INFO)
    made.addHandler(ring)
    return made


def lines(ring: AuditRing, **wanted: object) -> tuple[AuditLine, ...]:
    return ring.audit("", AuditFilter(**wanted), authorization_enabled=True).lines  # type: ignore[arg-type]


def change(audit: logging.Logger, name: str = "orders", outcome: str = OK, **facts: object) -> None:
    caller = {"principal": ALICE, "host": "10.0.0.1", "peer": "ipv4:10.0.0.1:5", "rule": "super user"}
    audit.info("%s", "CreateTopic", extra={**caller, "outcome": outcome, "topic": name, **facts})


def denial(audit: logging.Logger, principal: str = "User:token:bob") -> None:
    facts = {"principal": principal, "host": "10.0.0.2", "operation": "READ", "resource": "topic:orders"}
    audit.warning("denied", extra={**facts, "rule": "no rule allows it", "outcome": DENIED})


def test_a_change_has_its_caller_its_resource_and_its_facts(ring: AuditRing, audit: logging.Logger) -> None:
    change(audit, partitions=3, request_id="", configs={"retention.ms": "5"})
    (line,) = lines(ring)
    assert line[1:8] == ("CreateTopic", ALICE, "10.0.0.1", "", "topic:orders", OK, "super user")
    assert line.facts == {"partitions": "3", "configs": "{'retention.ms': '5'}"}
    assert line.at_ms >= ring.since_ms - 1


def test_lines_are_selected_by_caller_resource_and_outcome(ring: AuditRing, audit: logging.Logger) -> None:
    change(audit)
    change(audit, "flights", "TOPIC_ALREADY_EXISTS")
    denial(audit)
    assert [one.event for one in lines(ring, principal="ALICE")] == ["CreateTopic", "CreateTopic"]
    assert [one.resource for one in lines(ring, resource="Orders")] == ["topic:orders", "topic:orders"]
    assert [one.event for one in lines(ring, outcome=DENIED)] == ["denied"]
    assert [one.resource for one in lines(ring, outcome=FAILED)] == ["topic:flights"]
    assert len(lines(ring, limit=2)) == 2
    assert lines(ring)[0].event == "denied", "the newest first"


def test_denials_never_evict_changes(ring: AuditRing, audit: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_ring, "LINES_MAX", 2)
    ring.__init__()  # type: ignore[misc]
    change(audit)
    for number in range(5):
        denial(audit, f"User:{number}")
    assert [one.principal for one in lines(ring)] == ["User:4", "User:3", ALICE]


def test_a_long_fact_is_cut(ring: AuditRing, audit: logging.Logger) -> None:
    change(audit, "t" * 5_000, diff=["x" * 5_000])
    (line,) = lines(ring)
    assert len(line.resource) < FACT_CHARACTERS_MAX + 20
    assert len(line.facts["diff"]) < FACT_CHARACTERS_MAX + 20


def test_the_limit_of_denials_holds_for_the_lines_in_memory(ring: AuditRing, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.Logger("audit of a test", logging.INFO)
    logger.addHandler(ring)
    monkeypatch.setattr("tidemark.rpc.security.audit.AUDIT", logger)
    denials = Audit(now_s=lambda: 0.0)
    for _ in range(1_000):
        denials.denied(ALICE, "10.0.0.1", Operation.READ, topic("orders"), NO_RULE)
    assert len(lines(ring)) == 20


def test_lines_of_a_service_survive_their_messages(ring: AuditRing, audit: logging.Logger) -> None:
    change(audit, diff=["<script>"])
    denial(audit)
    found = ring.audit("broker 1", AuditFilter(), authorization_enabled=True)
    assert response_from_proto(response_to_proto(found)) == found
    away = ServiceAudit("broker 2", error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away"))
    again = response_from_proto(response_to_proto(away))
    assert (again.service, again.lines, again.error and again.error.code) == ("broker 2", (), away.error.code)  # type: ignore[union-attr]
    wanted = AuditFilter("alice", "orders", DENIED, 7)
    assert filter_from_proto(filter_to_proto(wanted)) == wanted
