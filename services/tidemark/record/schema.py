# SPDX-License-Identifier: Apache-2.0
"""The Arrow schemas of a payload (docs/formats.md): magic and attributes alone determine the schema."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
    pa.field("headers", HEADERS_TYPE),
]

SCHEMA: Final = pa.schema(_FIELDS)
"""Schema of magic 1: key and value may be null (a null value is a tombstone), headers too."""

COMPACTED_SCHEMA: Final = SCHEMA.append(pa.field("offset_delta", pa.uint32(), nullable=False))
"""Schema of a compacted batch: a row's offset is base_offset + offset_delta."""

OFFSET_SCHEMA: Final = SCHEMA.append(pa.field("offset", pa.int64(), nullable=False))
"""The rows that readers get, each with its offset."""
