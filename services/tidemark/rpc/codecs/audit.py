# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit log <-> messages."""

from __future__ import annotations

from typing import Final

from tidemark.core.security.audit_lines import AuditFilter, AuditLine, ServiceAudit
from tidemark.model import TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.message import Codec, Field
from tidemark.v1 import audit_pb2 as pb

_FILTER: Final = Codec(AuditFilter, pb.AuditFilter)
filter_to_proto: Final = _FILTER.to_proto
filter_from_proto: Final = _FILTER.from_proto

_LINE: Final = Codec(AuditLine, pb.AuditLine, facts=Field(dict, dict))


def audit_to_proto(found: ServiceAudit) -> pb.ServiceAudit:
    """The message of a service's lines."""
    return pb.ServiceAudit(
        since_ms=found.since_ms,
        authorization_enabled=found.authorization_enabled,
        lines=_LINE.to_protos(found.lines),
    )


def audit_from_proto(service: str, message: pb.ServiceAudit, error: TidemarkError | None = None) -> ServiceAudit:
    """Decode the audit lines of a service."""
    lines = tuple(_LINE.from_protos(message.lines))
    return ServiceAudit(service, message.since_ms, message.authorization_enabled, lines, error)


def response_to_proto(found: ServiceAudit) -> pb.ListAuditLinesResponse:
    """The admin service's answer about one service."""
    if found.error is not None:
        return pb.ListAuditLinesResponse(service=found.service, error=errors.to_proto(found.error))
    return pb.ListAuditLinesResponse(service=found.service, audit=audit_to_proto(found))


def response_from_proto(message: pb.ListAuditLinesResponse) -> ServiceAudit:
    """The lines of one service, or its error."""
    error = errors.error_in(message)
    return audit_from_proto(message.service, message.audit, error)
