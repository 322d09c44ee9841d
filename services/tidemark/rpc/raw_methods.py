# SPDX-License-Identifier: Apache-2.0
"""RPC methods whose batches, or whole responses, are bytes; protobuf reads and writes the other fields.

The protocol is that of `proto/`: generated stubs can call and serve these methods too. When several handlers of a
service know a method, the first one serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from tidemark.rpc.codecs import fetch as fetch_codec
from tidemark.v1 import admin_service_pb2 as admin_pb
from tidemark.v1 import broker_service_pb2 as broker_pb
from tidemark.v1 import replica_service_pb2 as replica_pb
from tidemark.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from tidemark.v1.broker_service_pb2_grpc import add_BrokerServiceServicer_to_server
from tidemark.v1.replica_service_pb2_grpc import add_ReplicaServiceServicer_to_server

_ADMIN: Final = "tidemark.v1.AdminService"
_BROKER: Final = "tidemark.v1.BrokerService"
_REPLICA: Final = "tidemark.v1.ReplicaService"


Headers = Sequence[tuple[str, str]]


def open_produce(channel: grpc.aio.Channel, headers: Headers = ()) -> Any:
    """A Produce stream whose requests are bytes."""
    method: Any = channel.stream_stream(
        f"/{_BROKER}/Produce", response_deserializer=broker_pb.ProduceResponse.FromString
    )
    return method(metadata=headers) if headers else method()


def open_fetches(channel: grpc.aio.Channel, headers: Headers = ()) -> Any:
    """A FetchStream whose responses are `fetch_codec.Results`."""
    method: Any = channel.stream_stream(
        f"/{_BROKER}/FetchStream",
        request_serializer=broker_pb.FetchRequest.SerializeToString,
        response_deserializer=fetch_codec.decode,
    )
    return method(metadata=headers) if headers else method()


def fetch_method(channel: grpc.Channel) -> Any:
    """Fetch, blocking, whose response is `fetch_codec.Results`."""
    return channel.unary_unary(
        f"/{_BROKER}/Fetch",
        request_serializer=broker_pb.FetchRequest.SerializeToString,
        response_deserializer=fetch_codec.decode,
    )


def add_broker_service(servicer: Any, server: grpc.aio.Server) -> None:
    """Serve a BrokerServiceServicer whose Fetch and FetchStream return `fetch_codec.Results`."""
    request = broker_pb.FetchRequest.FromString
    own = {
        "Fetch": grpc.unary_unary_rpc_method_handler(servicer.Fetch, request, fetch_codec.encode),
        "FetchStream": grpc.stream_stream_rpc_method_handler(servicer.FetchStream, request, fetch_codec.encode),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_BROKER, own),))
    add_BrokerServiceServicer_to_server(servicer, server)


def add_replica_service(servicer: Any, server: grpc.aio.Server) -> None:
    """Serve a ReplicaServiceServicer whose Replicate writes responses as bytes."""
    replicate: Any = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, replica_pb.ReplicateRequest.FromString, response_serializer=None
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_REPLICA, {"Replicate": replicate}),))
    add_ReplicaServiceServicer_to_server(servicer, server)


def add_admin_service(servicer: Any, server: grpc.aio.Server) -> None:
    """Serve an AdminServiceServicer whose DescribeTopics and DescribeCluster return responses as bytes."""
    topics: Any = grpc.unary_unary_rpc_method_handler(
        servicer.DescribeTopics, admin_pb.DescribeTopicsRequest.FromString, response_serializer=None
    )
    cluster: Any = grpc.unary_unary_rpc_method_handler(
        servicer.DescribeCluster, admin_pb.DescribeClusterRequest.FromString, response_serializer=None
    )
    own = {"DescribeTopics": topics, "DescribeCluster": cluster}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_ADMIN, own),))
    add_AdminServiceServicer_to_server(servicer, server)
