# SPDX-License-Identifier: Apache-2.0
"""The rights of one caller during one call or stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from tidemark.core.security.acls import CLUSTER, Operation, Resource, ResourceType, denial, topic
from tidemark.core.security.audit_lines import CANCELLED, OK
from tidemark.core.security.authorizer import Authorizer, Decision
from tidemark.core.security.principals import ANONYMOUS, Principal
from tidemark.core.security.rights import Need, Right
from tidemark.core.security.visible_views import hidden_topic
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.rpc.request_limits import check_named
from tidemark.rpc.security.audit import AUDIT, Audit, bounded
from tidemark.rpc.security.callers import caller_of, host_of
from tidemark.runtime.slices import Pace

CURRENT: Final[ContextVar[Access | None]] = ContextVar("access", default=None)
"""Rights of the caller of the running call; None: authorization is off."""

_TOPIC_TYPE_IN_CONFIGS: Final = 1


def audit_facts(context: Any) -> dict[str, object]:
    """Facts of a call's caller for its audit line: principal, host, peer, and the rule that allows the call.

    Read before the call waits: gRPC frees a call that its caller cancelled, and a later read crashes the process.
    """
    peer: str = context.peer()
    access = CURRENT.get()
    if access is None:
        caller = caller_of(context) or ANONYMOUS
        return {"principal": caller.name, "host": host_of(peer), "peer": peer, "rule": "authorization is off"}
    rules = [one.reason if one.rule is None else str(one.rule) for one in access.decisions]
    rule = ", ".join(dict.fromkeys(rules)) or "a service of the cluster"
    return {"principal": access.principal, "host": access.host, "peer": peer, "rule": rule}


@contextmanager
def audited(event: str, context: Any, facts: Mapping[str, object]) -> Iterator[None]:
    """Write the line of a change with its outcome, even if the change fails, or its caller cancels the call meanwhile.

    Args:
        event: name of the RPC.
        context: context of the call.
        facts: the change; read at its end.
    """
    caller = audit_facts(context)

    def write(outcome: str) -> None:
        shown = {name: bounded(fact) for name, fact in facts.items()}
        AUDIT.info("%s", event, extra={**caller, "outcome": outcome, **shown})

    with outcome_to(write):
        yield


@contextmanager
def outcome_to(note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` at the end with the outcome: OK, CANCELLED or an error code."""
    outcome = str(ErrorCode.INTERNAL)
    try:
        yield
        outcome = OK
    except TidemarkError as error:
        outcome = str(error.code)
        raise
    except (asyncio.CancelledError, GeneratorExit):  # GeneratorExit: the caller cancelled a stream
        outcome = CANCELLED
        raise
    finally:
        note(outcome)


def may_name(topic_name: str) -> bool:
    """Whether an answer to the running call may name the topic: the caller may DESCRIBE it, or is a service."""
    access = CURRENT.get()
    return access is None or access.role is not None or access.may_describe(topic_name)


class Access:
    """The rights of one caller. Decisions use the present rules, so a stream keeps its `Access`.

    Attributes:
        principal: the caller's name.
        host: the caller's address.
        role: role of a service of this cluster; None for every other caller.
        decisions: the decisions that allowed the call, for its audit line.
    """

    __slots__ = ("_audit", "_authorizer", "decisions", "host", "principal", "role")

    def __init__(self, authorizer: Authorizer, audit: Audit, caller: Principal, host: str, cluster: str) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.principal = caller.name
        self.host = host
        self.role = caller.role if cluster and caller.cluster == cluster else None
        self.decisions: list[Decision] = []

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Whether the operation is allowed; raises AUTHORIZER_NOT_READY."""
        return self._authorizer.decide(self.principal, self.host, operation, resource).allowed

    def may_describe(self, name: str) -> bool:
        """Whether the topic may be seen; raises AUTHORIZER_NOT_READY."""
        return self.may(Operation.DESCRIBE, topic(name))

    def require(self, operation: Operation, resource: Resource) -> None:
        """Raises the denial, which is audited, or AUTHORIZER_NOT_READY."""
        decision = self._authorizer.decide(self.principal, self.host, operation, resource)
        if not decision.allowed:
            raise self._denied(operation, resource, decision)

    def hidden(self, name: str) -> TidemarkError:
        """The error for a topic that may not be seen: the same whether the topic exists or not."""
        decision = self._authorizer.decide(self.principal, self.host, Operation.DESCRIBE, topic(name))
        self._audit.denied(self.principal, self.host, Operation.DESCRIBE, topic(name), decision)
        return hidden_topic(self.principal, name, decision.reason)

    async def check(self, need: Need, resources: Iterable[Resource]) -> None:
        """Raises the denial of the first resource that the need is denied for."""
        pace = Pace()
        for resource in resources:
            if pace.is_due:
                await pace.give_way()
            refused = self.refusal(need.operation, resource, any_name=not need.field and resource.name == "")
            if refused is not None:
                raise refused

    async def check_call(self, right: Right, request: Any) -> None:
        """Raises a denial unless the caller may make the call with this request; items are for `refusal`."""
        needs = right.needs if right.items is None else right.needs[:-1]
        if right.instead is not None:
            only = right.instead
            if all(self._allows(only, one) for one in await resources_of(only, request)):
                return
        for need in needs:
            await self.check(need, await resources_of(need, request))

    def refusal(self, operation: Operation, resource: Resource, *, any_name: bool = False) -> TidemarkError | None:
        """Return and audit the denial, None if the operation is allowed; UNKNOWN_TOPIC for a topic without DESCRIBE."""
        if any_name:
            decision = self._authorizer.decide_any(self.principal, self.host, operation, resource.type)
        else:
            decision = self._authorizer.decide(self.principal, self.host, operation, resource)
        if decision.allowed:
            self.decisions.append(decision)
            return None
        if operation is Operation.DESCRIBE and resource.type is ResourceType.TOPIC:
            return self.hidden(resource.name)
        return self._denied(operation, resource, decision)

    def _allows(self, need: Need, resource: Resource) -> bool:
        decision = self._authorizer.decide(self.principal, self.host, need.operation, resource)
        if decision.allowed:
            self.decisions.append(decision)
        return decision.allowed

    def _denied(self, operation: Operation, resource: Resource, decision: Decision) -> TidemarkError:
        self._audit.denied(self.principal, self.host, operation, resource, decision)
        return denial(self.principal, operation, resource, decision.reason)


class Accesses:
    """Makes the `Access` of a call.

    Args:
        cluster: the cluster's name in the identities of its services; "" on a plain-text port.
    """

    def __init__(self, authorizer: Authorizer, audit: Audit, cluster: str) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._cluster = cluster

    def of(self, context: Any) -> Access:
        """The rights of the call's caller. Read before the call waits: gRPC frees a call that its caller cancelled."""
        caller = caller_of(context) or ANONYMOUS
        return Access(self._authorizer, self._audit, caller, host_of(context.peer()), self._cluster)


def check_names(right: Right, request: Any) -> None:
    """Raises INVALID_REQUEST if a field that the right names has more items than a request may name."""
    for need in (*right.needs, *([right.instead] if right.instead else [])):
        message = request
        for field in filter(None, need.field.split(".")):
            value = getattr(message, field)
            if message.DESCRIPTOR.fields_by_name[field].is_repeated:
                check_named(value, field.replace("_", " "))
                break  # names are not nested in lists of lists
            message = value


async def resources_of(need: Need, request: Any) -> list[Resource]:
    """The resources that a request names for a need, each once; without a field the cluster, or "" for any name."""
    if need.when and not getattr(request, need.when):
        return []
    if not need.field:
        return [CLUSTER if need.type in (None, ResourceType.CLUSTER) else Resource(need.type, "")]
    found, pace = dict[Resource, None](), Pace()
    for one in values_at(request, need.field.split(".")):
        if pace.is_due:
            await pace.give_way()
        found[_configured(one) if need.type is None else Resource(need.type, one)] = None
    return list(found)


def values_at(message: Any, path: list[str]) -> Iterator[Any]:
    """The values at a path of fields; the path may contain repeated fields."""
    field, rest = getattr(message, path[0]), path[1:]
    repeated = message.DESCRIPTOR.fields_by_name[path[0]].is_repeated
    for one in field if repeated else (field,):
        if rest:
            yield from values_at(one, rest)
        else:
            yield one


def _configured(resource: Any) -> Resource:
    """The resource whose settings a `ConfigResource` names: settings of brokers are the cluster's."""
    return topic(resource.name) if resource.type == _TOPIC_TYPE_IN_CONFIGS else CLUSTER
