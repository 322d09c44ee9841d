# SPDX-License-Identifier: Apache-2.0
"""The headers in which a caller names the receiver of a call, once for each call or stream (rule F4).

An address may pass to another broker, or to a broker of another cluster, such as that of a pod. Ids and epochs of two
clusters are often equal. A caller of version 0.1.0 names no receiver, and a receiver of that version ignores the names.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.errors import Continuation, handler_refusing

CLUSTER: Final = "receiver-cluster"
BROKER: Final = "receiver-broker"

Headers = tuple[tuple[str, str], ...]


def receiver_headers(cluster_id: str, broker_id: int | None = None) -> Headers:
    """The metadata of a call to a service of a cluster.

    Args:
        cluster_id: id of the cluster; "": unknown, and any cluster may receive the call.
        broker_id: id of the broker; None: any broker may receive the call.
    """
    cluster = ((CLUSTER, cluster_id),) if cluster_id else ()
    return cluster if broker_id is None else (*cluster, (BROKER, str(broker_id)))


class ReceiverCheck(grpc.aio.ServerInterceptor):
    """Refuses calls for another cluster or broker with BROKER_NOT_AVAILABLE, before their handler.

    Attributes:
        cluster_id: id of the cluster of this service; "" until the service knows it, and then any call is accepted.

    Args:
        broker_id: id of this broker; None: this service is not a broker.
    """

    def __init__(self, broker_id: int | None = None) -> None:
        self.cluster_id = ""
        self._broker_id = broker_id

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of the call, or one that refuses it."""
        for name, given in handler_call_details.invocation_metadata or ():
            value = given if isinstance(given, str) else given.decode("utf-8", "replace")
            if name == CLUSTER and self.cluster_id and value != self.cluster_id:
                return _another(f"the call is for cluster {value}; this is a service of cluster {self.cluster_id}")
            if name == BROKER and self._broker_id is not None and value != str(self._broker_id):
                return _another(f"the call is for broker {value}; this is broker {self._broker_id}, at its address")
        return await continuation(handler_call_details)


def _another(sentence: str) -> Any:
    return handler_refusing(TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, sentence))
