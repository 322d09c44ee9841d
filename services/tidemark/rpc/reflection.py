# SPDX-License-Identifier: Apache-2.0
"""Server reflection, versions v1 and v1alpha: grpcurl, ghz and other tools call the services without .proto files.

grpcio-reflection serves v1alpha only. The messages of both versions have the same bytes, so its servicer answers both.
protobuf's descriptor pool finds messages, fields, enum values and services by name, but no methods.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2

_ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
_SERVICE: Final = "ServerReflection"
_NAMES: Final = (f"{_V1}.{_SERVICE}", f"{_ALPHA}.{_SERVICE}")

Found = TypeVar("Found")


def add_reflection(names: Sequence[str], server: grpc.aio.Server) -> None:
    """Serve both versions of the reflection, which lists these services and the reflection itself."""
    pool: Any = _Symbols()
    servicer = reflection.aio.ReflectionServicer((*names, *_NAMES), pool=pool)
    method: Any = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in _NAMES]
    )


class _Symbols:
    """The calls of a descriptor pool that the servicer makes, each with KeyError for an unknown name.

    Each call searches the default pool, then the descriptor of the reflection's own version v1.
    """

    def FindFileByName(self, name: str) -> FileDescriptor:  # noqa: N802 - a method of descriptor pools
        """The descriptor of the file with this path."""
        return self._first(name, lambda pool: pool.FindFileByName(name))

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """The file that defines this message, field, enum, enum value, service or method."""
        parent, _, own = symbol.rpartition(".")
        return self._first(
            symbol,
            lambda pool: pool.FindFileContainingSymbol(symbol),
            lambda pool: pool.FindServiceByName(parent).methods_by_name[own].containing_service.file,
            lambda pool: pool.FindEnumTypeByName(parent).values_by_name[own].type.file,
        )

    def FindMessageTypeByName(self, name: str) -> Descriptor:  # noqa: N802
        """The message with this full name."""
        return self._first(name, lambda pool: pool.FindMessageTypeByName(name))

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:  # noqa: N802
        """The extension of the message with this field number."""
        return message.file.pool.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:  # noqa: N802
        """All extensions of the message type in its descriptor pool."""
        return message.file.pool.FindAllExtensions(message)

    def _first(self, name: str, *looks: Callable[[DescriptorPool], Found]) -> Found:
        for look in looks:
            for pool in _pools():
                with contextlib.suppress(KeyError):
                    return look(pool)
        raise KeyError(name)


@functools.cache
def _pools() -> tuple[DescriptorPool, DescriptorPool]:
    """The default pool and that of v1, made at the first call: 4 ms that most services never need."""
    own = DescriptorPool()
    own.Add(_file_of_v1())
    return descriptor_pool.Default(), own


def _file_of_v1() -> descriptor_pb2.FileDescriptorProto:
    """The file of version v1: a copy of the v1alpha file in another package."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha).replace(_ALPHA, _V1)
    path = f"{_V1.replace('.', '/')}/reflection.proto"
    own: descriptor_pb2.FileDescriptorProto = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    own.name = path
    own.ClearField("options")
    return own
