# SPDX-License-Identifier: Apache-2.0
"""The async clients, each imported at its first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.client.aio.admin.client import AdminClient
    from tidemark.client.aio.admin.results import ClusterDescription
    from tidemark.client.aio.consumer import Consumer
    from tidemark.client.aio.groups import Groups
    from tidemark.client.aio.producer import Producer
else:
    from tidemark.client.lazy_imports import on_demand

    __getattr__ = on_demand(
        __name__,
        {
            "admin.client": ("AdminClient",),
            "admin.results": ("ClusterDescription",),
            "consumer": ("Consumer",),
            "groups": ("Groups",),
            "producer": ("Producer",),
        },
    )

__all__ = ["AdminClient", "ClusterDescription", "Consumer", "Groups", "Producer"]
