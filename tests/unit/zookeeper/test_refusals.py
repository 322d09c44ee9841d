# SPDX-License-Identifier: Apache-2.0
"""The node of refused requests, which services of two versions write during an upgrade."""

from __future__ import annotations

import json

from tidemark.model import ErrorCode
from tidemark.zookeeper.codecs import decode_refusals

KNOWN = {"kind": "reassignment", "topic": "a", "partition": 0, "message": "m", "request_id": "r", "at_ms": 1}


def test_a_refusal_with_a_code_of_a_later_version_leaves_the_others_readable() -> None:
    """Otherwise the admin service would not get the reason of any refusal, and the next refusal would replace all."""
    node = {"version": 1, "refusals": [KNOWN | {"code": "FROM_THE_FUTURE"}, KNOWN | {"code": "UNKNOWN_TOPIC"}]}
    first, second = decode_refusals("/admin/refusals", json.dumps(node).encode())
    assert (first.error.code, first.error.message) == (ErrorCode.INTERNAL, "FROM_THE_FUTURE: m")
    assert second.error.code is ErrorCode.UNKNOWN_TOPIC
