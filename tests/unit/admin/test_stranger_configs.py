# SPDX-License-Identifier: Apache-2.0
"""What a later version asks of the settings and this one does not know: refused with a code, and in the audit log."""

from __future__ import annotations

from typing import Any, cast

import pytest
from grpc.aio import ServicerContext
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import admin_configs_pb2 as pb

from tests.fakes.metadata_store import FakeZooKeeper
from tests.unit.admin.test_configs import Caller, Calls


@pytest.mark.parametrize("kind", [3, 77, -5])
async def test_settings_of_a_kind_that_this_version_does_not_know(kind: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidemark.audit")
    request = pb.AlterConfigsRequest(resource=pb.ConfigResource(name="flights"), set={"segment.ms": "6"})
    request.resource.type = cast(Any, kind)
    with pytest.raises(TidemarkError) as refused:
        await Calls(FakeZooKeeper().store()).AlterConfigs(request, cast("ServicerContext[Any, Any]", Caller()))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    (line,) = [vars(record) for record in caplog.records if record.name == "tidemark.audit"]
    assert (line["resource"], line["outcome"]) == (f"{kind} flights", "INVALID_REQUEST")
