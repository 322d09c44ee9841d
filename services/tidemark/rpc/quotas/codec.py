# SPDX-License-Identifier: Apache-2.0
"""Quotas <-> messages; words and limits are checked when they are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.core.quotas.quotas import Limits, QuotaEntity, QuotaKind, check_entity, check_limit, kind_of, limit_text
from tidemark.model import invalid_request
from tidemark.rpc.codecs.message import OPTIONAL, Codec, Field
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


def limits_from_proto(limits: Mapping[str, float]) -> dict[QuotaKind, float]:
    """Decode limits; raises INVALID_REQUEST for an unknown kind, or a limit out of range."""
    named = {kind_of(word): limit for word, limit in limits.items()}
    return {kind: check_limit(kind, limit) for kind, limit in named.items()}


def _by_word(limits: Limits) -> dict[str, float]:
    return {str(kind): limit for kind, limit in limits.items()}


_NAMES: Final = Codec(QuotaEntity, pb.QuotaEntity, user=OPTIONAL, client_id=OPTIONAL)
_ENTITY: Final = Field(_NAMES.to_proto, lambda message: check_entity(_NAMES.from_proto(message)))


def quotas_to_proto(limits: Mapping[QuotaEntity, Limits]) -> list[pb.ClientQuotas]:
    """Encode quotas, sorted."""
    entities = sorted(limits, key=lambda entity: (entity.user or "", entity.client_id or ""))
    return [pb.ClientQuotas(entity=_NAMES.to_proto(one), limits=_by_word(limits[one])) for one in entities]


def quotas_from_proto(messages: Iterable[pb.ClientQuotas]) -> dict[QuotaEntity, dict[QuotaKind, float]]:
    """Decode quotas."""
    return {_ENTITY.from_proto(one.entity): limits_from_proto(one.limits) for one in messages}


_CHANGE: Final = Codec(
    QuotaChange,
    pb.ClientQuotasChange,
    entity=_ENTITY,
    set=Field(_by_word, limits_from_proto),
    remove=Field(sorted, lambda words: frozenset(map(kind_of, words))),
)
change_to_proto: Final = _CHANGE.to_proto


def change_from_proto(message: pb.ClientQuotasChange) -> QuotaChange:
    """Decode a change of quotas; raises INVALID_REQUEST, also for a kind that is both set and removed."""
    found = _CHANGE.from_proto(message)
    if both := found.set.keys() & found.remove:
        raise invalid_request(f"{min(both)} of {found.entity} is to be set and removed")
    return found


_CHANGED: Final = Codec(
    ChangedQuota, pb.ChangedQuota, entity=_ENTITY, kind=Field(from_proto=kind_of), before=OPTIONAL, after=OPTIONAL
)
changed_to_proto: Final = _CHANGED.to_proto
changed_from_proto: Final = _CHANGED.from_proto
