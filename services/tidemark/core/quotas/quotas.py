# SPDX-License-Identifier: Apache-2.0
"""Quotas, as Kafka has them: limits for a user, a client id, both, or their defaults, and the limit that applies.

Each kind of quota is looked up separately. The first entity with a limit of that kind decides, in this order: (user,
client id), (user, default client id), user, (default user, client id). Then come (default user, default client id),
default user, client id, default client id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.core.quotas.client_ids import DEFAULT as DEFAULT
from tidemark.core.quotas.client_ids import check_client_id
from tidemark.core.security.acls import ANY_USER, PRINCIPAL_CHARACTERS_MAX
from tidemark.core.security.principals import can_be_a_user
from tidemark.errors import ErrorCode, TidemarkError


class QuotaKind(StrEnum):
    """The kinds of quotas; Kafka's names, except the last one."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    PARTITION_CREATION_RATE = "partition_creation_rate"


ENTITIES_MAX: Final = 10_000
"""Entities with quotas in one cluster."""
_LIMIT_MAX: Final = 1e15
_LIMIT_MIN: Final = {
    QuotaKind.PRODUCER_BYTE_RATE: 1.0,
    QuotaKind.CONSUMER_BYTE_RATE: 1.0,
    QuotaKind.REQUEST_PERCENTAGE: 0.01,
    QuotaKind.PARTITION_CREATION_RATE: 0.001,
}
_NAMES_MAX: Final = 40
_KINDS: Final = ", ".join(QuotaKind)


class QuotaEntity(NamedTuple):
    """The owner of a quota. A field is a name, DEFAULT, or None: the quota does not depend on this field.

    Attributes:
        user: name of a principal, such as "User:token:alice".
        client_id: the name that a client gives itself.
    """

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client id", self.client_id))
        shown = [f"the default {word}" if name == DEFAULT else f"{word} {name}" for word, name in parts if name]
        return " with ".join(shown)


Limits = Mapping[QuotaKind, float]


class Decision(NamedTuple):
    """The quota that applies to a caller.

    Attributes:
        entity: the entity that has the quota.
        limit: bytes per second, percent, or partitions per second.
        shared_by: the callers that share the quota; no member is DEFAULT.
    """

    entity: QuotaEntity
    limit: float
    shared_by: QuotaEntity


class Quotas:
    """All quotas of one generation. An instance never changes.

    Attributes:
        limits: limits of each entity; an entity has at least one limit.
        generation: version of the node that holds them; -1: the node does not exist.
    """

    def __init__(self, limits: Mapping[QuotaEntity, Limits] | None = None, generation: int = -1) -> None:
        self.limits = {entity: dict(found) for entity, found in (limits or {}).items() if found}
        self.generation = generation
        self._by_kind: dict[QuotaKind, dict[QuotaEntity, float]] = {}
        for entity, found in self.limits.items():
            for kind, limit in found.items():
                self._by_kind.setdefault(kind, {})[entity] = limit

    def decide(self, kind: QuotaKind, user: str, client_id: str) -> Decision | None:
        """The quota of this kind that applies to a caller; None if there is none.

        Args:
            kind: kind of the quota.
            user: name of the caller's principal.
            client_id: "": the caller gave no client id; then only quotas of the default client id apply.
        """
        limits = self._by_kind.get(kind)
        if limits is None:
            return None
        for entity in _entities_of(user, client_id):
            limit = limits.get(entity)
            if limit is not None:
                shared_by = QuotaEntity(
                    None if entity.user is None else user, None if entity.client_id is None else client_id
                )
                return Decision(entity, limit, shared_by)
        return None


def _entities_of(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    """The entities that cover a caller, the one that decides first."""
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT),
        QuotaEntity(user, None),
        QuotaEntity(DEFAULT, client_id),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT, None),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT),
    )


def check_entity(entity: QuotaEntity) -> QuotaEntity:
    """Return the entity after a check.

    Raises:
        TidemarkError: INVALID_REQUEST: the entity is empty, or has an impossible user or client id.
    """
    if entity == QuotaEntity():
        raise _wrong(f"a quota is for a user, a client id, or both; {DEFAULT} means all others", "entity")
    user = entity.user
    if user is not None and user != DEFAULT:
        short = len(user) <= PRINCIPAL_CHARACTERS_MAX and user.isprintable()
        if user == ANY_USER or not short or not can_be_a_user(user):
            raise _wrong(
                f"no caller is {user[:_NAMES_MAX]!r}: give User: and the URI name of a certificate, User:token:NAME, "
                f"User:oidc:ALIAS:SUBJECT, User:system:serviceaccount:NAMESPACE:NAME, User:ANONYMOUS or {DEFAULT}",
                "user",
            )
    if entity.client_id is not None and entity.client_id != DEFAULT:
        check_client_id(entity.client_id)
    return entity


def kind_of(word: str) -> QuotaKind:
    """The kind that a word names; raises INVALID_REQUEST for an unknown word, with the known words."""
    try:
        return QuotaKind(word)
    except ValueError:
        raise _wrong(f"there is no quota {word[:_NAMES_MAX]!r}: give one of {_KINDS}", "kind") from None


def limit_text(limit: float) -> str:
    """A limit with all its digits: 12345678, 33.5."""
    return str(int(limit)) if limit == round(limit) else str(limit)


def check_limit(kind: QuotaKind, limit: float) -> float:
    """The limit; raises INVALID_REQUEST for a number out of range, or an invalid number."""
    smallest = _LIMIT_MIN[kind]
    if not (math.isfinite(limit) and smallest <= limit <= _LIMIT_MAX):
        raise _wrong(f"{kind} is {limit:g}: give {smallest:g} to {_LIMIT_MAX:g}; remove it to have no limit", "limit")
    return float(limit)


def _wrong(sentence: str, fact: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_REQUEST, sentence, {"quota": fact})
