# SPDX-License-Identifier: Apache-2.0
"""The methods of the async AdminClient for quotas; `tidemark.client.quotas` has the names for their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.client.argument_types import flag, instances
from tidemark.core.quotas.quotas import Limits, QuotaEntity
from tidemark.rpc.quotas.codec import ChangedQuota, QuotaChange, change_to_proto, changed_from_proto, quotas_from_proto
from tidemark.v1 import admin_quotas_pb2 as pb


class AlteredQuotas(NamedTuple):
    """Result of `alter_client_quotas`.

    Attributes:
        changed: the limits that differ from those before.
        generation: version of all quotas after the change.
    """

    changed: tuple[ChangedQuota, ...]
    generation: int


class QuotaCalls:
    """Quotas. A part of `AdminClient`, which has its methods."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def describe_client_quotas(self) -> Mapping[QuotaEntity, Limits]:
        """Describe the quotas: limits by kind of each user, client id, pair of them, and default.

        Rates are per second and for each broker; `request_percentage` is in percent of the time of one processor.

        Example: `(await admin.describe_client_quotas())[QuotaEntity(user="User:token:alice")]`
        """
        response = await self._connection.call(lambda stub: stub.DescribeClientQuotas, pb.DescribeClientQuotasRequest())
        return quotas_from_proto(response.quotas)

    async def alter_client_quotas(
        self, changes: Sequence[QuotaChange], *, validate_only: bool = False
    ) -> AlteredQuotas:
        """Set and remove quotas, all of them or none; they take effect together, within a second.

        Args:
            changes: limits to set, and kinds to remove, of each entity.
            validate_only: check the request and compute the result, change nothing.

        Raises:
            TidemarkError: INVALID_REQUEST for an unknown kind, a limit out of range, or a user that no caller can be.

        Example: `await admin.alter_client_quotas([QuotaChange(loader, {QuotaKind.PRODUCER_BYTE_RATE: 1e6})])`
        """
        request = pb.AlterClientQuotasRequest(
            changes=[change_to_proto(change) for change in instances("changes", changes, QuotaChange)],
            validate_only=flag("validate_only", validate_only),
        )
        response = await self._connection.call(lambda stub: stub.AlterClientQuotas, request)
        return AlteredQuotas(tuple(map(changed_from_proto, response.changed)), response.generation)
