# SPDX-License-Identifier: Apache-2.0
"""Names for the quota methods of `AdminClient`: quotas, their entities and kinds, and changes."""

from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind
from tidemark.rpc.quotas.codec import ChangedQuota, QuotaChange

__all__ = ["DEFAULT", "ChangedQuota", "QuotaChange", "QuotaEntity", "QuotaKind"]
