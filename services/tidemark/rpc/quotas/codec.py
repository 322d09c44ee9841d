# SPDX-License-Identifier: Apache-2.0
"""Quotas <-> messages; words and limits are checked when they are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemark.core.quotas.quotas import Limits, QuotaEntity, QuotaKind, check_entity, check_limit, kind_of, limit_text
from tidemark.model import invalid_request
from tidemark.v1 import admin_quotas_pb2 as pb


class QuotaChange(NamedTuple):
    """Limits of one entity to set, and kinds whose limits are removed."""

    entity: QuotaEntity
    set: Limits
    remove: frozenset[QuotaKind] = frozenset()

    def __str__(self) -> str:
        limits = {**dict.fromkeys(self.remove, "none"), **{kind: limit_text(one) for kind, one in self.set.items()}}
        return f"{self.entity}: {', '.join(f'{kind}={limits[kind]}' for kind in sorted(limits))}"


class ChangedQuota(NamedTuple):
    """A limit before and after a change; None: no limit."""

    entity: QuotaEntity
    kind: QuotaKind
    before: float | None
    after: float | None

    def __str__(self) -> str:
        before, after = ("none" if limit is None else limit_text(limit) for limit in (self.before, self.after))
        return f"{self.kind} of {self.entity}: {before} -> {after}"


def entity_to_proto(entity: QuotaEntity) -> pb.QuotaEntity:
    """Encode an entity."""
    return pb.QuotaEntity(user=entity.user, client_id=entity.client_id)


def entity_from_proto(message: pb.QuotaEntity) -> QuotaEntity:
    """Decode an entity; raises INVALID_REQUEST."""
    return check_entity(
        QuotaEntity(
            message.user if message.HasField("user") else None,
            message.client_id if message.HasField("client_id") else None,
        )
    )


def limits_from_proto(limits: Mapping[str, float]) -> dict[QuotaKind, float]:
    """Decode limits; raises INVALID_REQUEST for an unknown kind, or a limit out of range."""
    named = {kind_of(word): limit for word, limit in limits.items()}
    return {kind: check_limit(kind, limit) for kind, limit in named.items()}


def quotas_to_proto(limits: Mapping[QuotaEntity, Limits]) -> list[pb.ClientQuotas]:
    """Encode quotas, sorted."""
    entities = sorted(limits, key=lambda entity: (entity.user or "", entity.client_id or ""))
    return [pb.ClientQuotas(entity=entity_to_proto(one), limits=_by_word(limits[one])) for one in entities]


def quotas_from_proto(messages: Iterable[pb.ClientQuotas]) -> dict[QuotaEntity, dict[QuotaKind, float]]:
    """Decode quotas."""
    return {entity_from_proto(one.entity): limits_from_proto(one.limits) for one in messages}


def change_to_proto(change: QuotaChange) -> pb.ClientQuotasChange:
    """Encode a change of quotas."""
    return pb.ClientQuotasChange(
        entity=entity_to_proto(change.entity), set=_by_word(change.set), remove=sorted(change.remove)
    )


def _by_word(limits: Limits) -> dict[str, float]:
    return {str(kind): limit for kind, limit in limits.items()}


def change_from_proto(message: pb.ClientQuotasChange) -> QuotaChange:
    """Decode a change of quotas; raises INVALID_REQUEST, also for a kind that is both set and removed."""
    found = QuotaChange(
        entity_from_proto(message.entity),
        limits_from_proto(message.set),
        frozenset(kind_of(word) for word in message.remove),
    )
    if both := found.set.keys() & found.remove:
        raise invalid_request(f"{min(both)} of {found.entity} is to be set and removed")
    return found


def changed_to_proto(changed: ChangedQuota) -> pb.ChangedQuota:
    """Encode a changed limit."""
    entity = entity_to_proto(changed.entity)
    return pb.ChangedQuota(entity=entity, kind=changed.kind, before=changed.before, after=changed.after)


def changed_from_proto(message: pb.ChangedQuota) -> ChangedQuota:
    """Decode a changed limit."""
    return ChangedQuota(
        entity_from_proto(message.entity),
        kind_of(message.kind),
        message.before if message.HasField("before") else None,
        message.after if message.HasField("after") else None,
    )
