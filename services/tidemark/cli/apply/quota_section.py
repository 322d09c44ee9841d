# SPDX-License-Identifier: Apache-2.0
"""The section `quotas` of the file of `tidemark apply`, and the step that makes the cluster's quotas match it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemark.cli.quota import limit_of
from tidemark.core.quotas.quotas import Limits, QuotaEntity, QuotaKind, check_entity, limit_text
from tidemark.runtime.configuration.entries import ConfigChange

if TYPE_CHECKING:
    from tidemark.client import AdminClient

NAMES: Final = ("user", "client_id")
KEYS: Final = (*NAMES, *QuotaKind)
"""Keys that an entry of the section `quotas` may have."""


@dataclass(frozen=True, slots=True)
class WantedQuotas:
    """All quotas of one entity; other quotas of this entity are removed."""

    entity: QuotaEntity
    line: int
    limits: Limits


def quotas_of(entry: Mapping[str, str], line: int) -> WantedQuotas:
    """The quotas of an entry with known keys.

    Raises:
        TidemarkError: INVALID_REQUEST for an invalid user or client id, or a limit out of range.
    """
    entity = check_entity(QuotaEntity(entry.get("user"), entry.get("client_id")))
    limits = {QuotaKind(key): limit_of(QuotaKind(key), value) for key, value in entry.items() if key not in NAMES}
    return WantedQuotas(entity, line, limits)


class QuotasChange:
    """The changes that turn the cluster's quotas into the quotas of the file, made in one write."""

    def __init__(self, wanted: Iterable[WantedQuotas], found: Mapping[QuotaEntity, Limits]) -> None:
        self._differences = [
            (one.entity, kind, before.get(kind), one.limits.get(kind))
            for one in wanted
            for before in (found.get(one.entity, {}),)
            for kind in QuotaKind
            if before.get(kind) != one.limits.get(kind)
        ]

    def __bool__(self) -> bool:
        """Whether a quota has to be set or removed."""
        return bool(self._differences)

    @property
    def summary(self) -> str:
        """How many quotas the change sets or removes."""
        return f"{len(self._differences)} to change"

    @property
    def changes(self) -> tuple[ConfigChange, ...]:
        """A line for each quota to set or remove."""
        return tuple(
            ConfigChange(f"{kind} of {entity}", *(None if limit is None else limit_text(limit) for limit in limits))
            for entity, kind, *limits in self._differences
        )

    def run(self, client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        """Make the change; a repeated change has no effect, so the request id is not needed."""
        from tidemark.rpc.quotas.codec import QuotaChange

        by_entity: dict[QuotaEntity, dict[QuotaKind, float | None]] = {}
        for entity, kind, _, limit in self._differences:
            by_entity.setdefault(entity, {})[kind] = limit
        changes = []
        for entity, after in by_entity.items():
            limits = {kind: limit for kind, limit in after.items() if limit is not None}
            changes.append(QuotaChange(entity, limits, frozenset(after.keys() - limits.keys())))
        client.alter_client_quotas(changes, validate_only=validate_only)
        return ()
