# SPDX-License-Identifier: Apache-2.0
"""AlterTopicSchema: plans and writes a version, again if the topic changed in between, and keeps the answer."""

from __future__ import annotations

from dataclasses import replace

from tidemark.admin.polling import poll
from tidemark.admin.requests import AnsweredOnce
from tidemark.admin.schemas import SchemaAdministration, SchemaPlan, SchemaRequest, draft_of
from tidemark.core.schemas.refusals import naming
from tidemark.model import ErrorCode, SchemaText, TidemarkError
from tidemark.v1 import topic_schemas_pb2 as pb

_METHOD = "AlterTopicSchema"


async def alter_schema(
    schemas: SchemaAdministration, requests: AnsweredOnce, request: pb.AlterTopicSchemaRequest, timeout_s: float
) -> pb.AlterTopicSchemaResponse:
    """The response to the request; a retry gets the response of the first attempt.

    Raises:
        TidemarkError: errors of `SchemaAdministration.plan`; REQUEST_ID_REUSED; REQUEST_TIMED_OUT.
    """
    with naming(request.topic):
        draft = draft_of(request.schema)
    wanted = SchemaRequest(request.topic, draft, request.expected_version)
    sent: SchemaPlan | None = None

    async def once() -> pb.AlterTopicSchemaResponse | None:
        """One attempt; None: the topic, its settings or its schema changed in between, or has no leader yet."""
        nonlocal sent, wanted
        if sent is not None and await schemas.was_carried_out(sent):
            return _response(sent, sent.schema)  # the answer of the first request was lost
        if not request.validate_only:
            kept = await requests.answer_to(_METHOD, request, pb.AlterTopicSchemaResponse)
            if kept is not None:
                return await _with_text(schemas, request.topic, kept)
        plan = await schemas.plan(wanted)
        if request.validate_only:
            return _response(plan, plan.schema)
        # A concurrent change is not undone silently, even if the caller expects no version.
        wanted = replace(wanted, expected_version=plan.topic.schema_version)
        # The version's znode has the text; the kept answer does not repeat the text, which can fill a multi.
        receipt = requests.receipt(_METHOD, request, _response(plan, SchemaText("", plan.schema.created_at_ms)))
        sent = plan if plan.changed else None
        return _response(plan, plan.schema) if await schemas.carry_out(plan, receipt) else None

    response = await poll(once, timeout_s)
    if response is None:
        raise TidemarkError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"no version of the schema of {request.topic} was made within {timeout_s:.1f} s. The topic has no leader "
            "yet, ZooKeeper does not answer, or other requests kept changing the topic. Retry with the same request id",
            {"topic": request.topic},
        )
    return response


async def _with_text(
    schemas: SchemaAdministration, topic: str, kept: pb.AlterTopicSchemaResponse
) -> pb.AlterTopicSchemaResponse:
    known = (await schemas.describe(topic)).schemas.get(kept.schema.version)
    if known is not None and known.created_at_ms == kept.schema.created_at_ms:
        kept.schema.text = known.text
    return kept


def _response(plan: SchemaPlan, schema: SchemaText) -> pb.AlterTopicSchemaResponse:
    return pb.AlterTopicSchemaResponse(
        schema=schema_to_proto(plan.version, schema), changed=plan.changed, differences=plan.differences
    )


def schema_to_proto(version: int, schema: SchemaText) -> pb.SchemaVersion:
    """Encode a version of a schema."""
    return pb.SchemaVersion(version=version, text=schema.text, created_at_ms=schema.created_at_ms)
