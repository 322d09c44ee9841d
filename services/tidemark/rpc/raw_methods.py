"""The streams that batches are written to as bytes that `wire` made; what comes back on them is read as ever.

The protocol is that of `proto/`: the generated stubs speak to the other end all the same.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from tidemark.v1 import broker_service_pb2 as broker_pb
from tidemark.v1 import replica_service_pb2 as replica_pb
from tidemark.v1.replica_service_pb2_grpc import add_ReplicaServiceServicer_to_server

_REPLICA: Final = "tidemark.v1.ReplicaService"


def open_produce(channel: grpc.aio.Channel) -> Any:
    """A Produce stream whose requests are bytes."""
    method: Any = channel.stream_stream(
        "/tidemark.v1.BrokerService/Produce", response_deserializer=broker_pb.ProduceResponse.FromString
    )
    return method()


def add_replica_service(servicer: Any, server: grpc.aio.Server) -> None:
    """Serve a ReplicaServiceServicer whose Replicate writes responses as bytes."""
    replicate: Any = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, replica_pb.ReplicateRequest.FromString, response_serializer=None
    )
    # The first handler that knows a method serves it.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_REPLICA, {"Replicate": replicate}),))
    add_ReplicaServiceServicer_to_server(servicer, server)
