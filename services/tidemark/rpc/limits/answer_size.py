# SPDX-License-Identifier: Apache-2.0
"""Keeps answers within gRPC's limit of a message: sentences of many errors of single items are shortened.

A request names at most `request_limits.NAMED_MAX` items, and has at most `request_limits.REQUEST_BYTES_MAX`
bytes, which the answer may repeat. The rest of the message is room for errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message

from tidemark.rpc.channel import MESSAGE_BYTES_MAX
from tidemark.runtime.slices import InSlices
from tidemark.v1 import record_pb2

ERRORS_BYTES_MAX: Final = 4 << 20
"""Limit of the errors of an answer that are sent in full; later errors have a code and a short sentence."""
BRIEF: Final = "as the errors before; this answer has no room for more"


class ErrorRoom:
    """The room for errors in one answer."""

    def __init__(self) -> None:
        self._left_bytes = ERRORS_BYTES_MAX

    def fit(self, error: record_pb2.Error) -> record_pb2.Error:
        """The error, or a short error with the same code if the space is used up."""
        self._left_bytes -= error.ByteSize()
        return error if self._left_bytes >= 0 else record_pb2.Error(code=error.code, message=BRIEF)


async def fit(response: Any) -> None:
    """Shorten the errors of a response that is larger than gRPC's limit of a message."""
    if not isinstance(response, Message) or response.ByteSize() <= MESSAGE_BYTES_MAX:
        return
    room = ErrorRoom()
    async for error in InSlices(_errors_in(response)):
        fitting = room.fit(error)
        if fitting is not error:
            error.CopyFrom(fitting)


def _errors_in(message: Message) -> Iterator[record_pb2.Error]:
    if isinstance(message, record_pb2.Error):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else (value,):
            yield from _errors_in(one)
