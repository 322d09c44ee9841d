# SPDX-License-Identifier: Apache-2.0
"""Lists and changes quotas, directly in ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.admin.acls import compare_and_set
from tidemark.core.quotas.quotas import ENTITIES_MAX, QuotaEntity, QuotaKind, Quotas
from tidemark.model import invalid_request
from tidemark.rpc.quotas.codec import ChangedQuota, QuotaChange
from tidemark.zookeeper.store import MetadataStore


class ChangedQuotas(NamedTuple):
    """The limits that differ, and the version of all quotas after the change."""

    changed: tuple[ChangedQuota, ...]
    generation: int


class QuotaAdministration:
    """Describes and changes the quotas of clients.

    Args:
        store: started.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def describe(self) -> Quotas:
        """Return the limits of all entities, with the generation of the quota node."""
        return await self._store.quotas()

    async def alter(self, changes: Sequence[QuotaChange], *, validate_only: bool) -> ChangedQuotas:
        """Set and remove limits in one write; a change that is in effect already is skipped.

        Raises:
            TidemarkError: INVALID_REQUEST for an entity with two changes, or too many entities; REQUEST_TIMED_OUT if
                other requests kept changing the quotas: nothing was changed.
        """
        by_entity = {change.entity: change for change in changes}
        if len(by_entity) < len(changes):
            raise invalid_request("a request changes the quotas of an entity once")

        async def attempt() -> ChangedQuotas | None:
            found = await self._store.quotas()
            limits: dict[QuotaEntity, dict[QuotaKind, float]] = {
                entity: dict(of_entity) for entity, of_entity in found.limits.items()
            }
            changed = tuple(one for change in changes for one in _carry_out(change, limits))
            if len([entity for entity, left in limits.items() if left]) > ENTITIES_MAX:
                raise invalid_request(f"at most {ENTITIES_MAX} entities have quotas")
            if not changed:
                return ChangedQuotas(changed, found.generation)
            written = await self._store.write_quotas(limits, version=found.generation, validate_only=validate_only)
            return ChangedQuotas(changed, found.generation + (not validate_only)) if written else None

        return await compare_and_set(attempt, "quotas")


def _carry_out(change: QuotaChange, limits: dict[QuotaEntity, dict[QuotaKind, float]]) -> list[ChangedQuota]:
    """Make the change in `limits`; returns the limits that differ."""
    of_entity = limits.setdefault(change.entity, {})
    before = dict(of_entity)
    of_entity.update(change.set)
    for kind in change.remove:
        of_entity.pop(kind, None)
    kinds = sorted(kind for kind in QuotaKind if before.get(kind) != of_entity.get(kind))
    return [ChangedQuota(change.entity, kind, before.get(kind), of_entity.get(kind)) for kind in kinds]
