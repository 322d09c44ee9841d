# SPDX-License-Identifier: Apache-2.0
"""Reads Spark's id of a streaming query from its checkpoint: the driver's Python processes have no other source for
it.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_METADATA: Final = "metadata"
_HADOOPS_NAME: Final = re.compile(r"^s3[an]://")


def read_query_id(checkpoint: str) -> str:
    """The id in the file `metadata` of a checkpoint, which Spark writes before the first micro-batch.

    Args:
        checkpoint: a path, or a URI of a file system that pyarrow has (file, hdfs, s3, s3a, gs, abfs).

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no id, or pyarrow has no such file system.
    """
    text = _content(checkpoint.rstrip("/"))
    try:
        return str(uuid.UUID(json.loads(text)["id"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"the file {_METADATA} of the checkpoint {checkpoint} has no id of a query") from None


def _content(checkpoint: str) -> bytes:
    scheme = urlsplit(checkpoint).scheme
    if not scheme:
        return Path(checkpoint, _METADATA).read_bytes()
    if scheme == "file":
        return Path(unquote(urlsplit(checkpoint).path), _METADATA).read_bytes()
    from pyarrow.fs import FileSystem  # a separate library: only for checkpoints that need it

    system, path = FileSystem.from_uri(_HADOOPS_NAME.sub("s3://", checkpoint))
    with system.open_input_file(f"{path}/{_METADATA}") as file:
        return bytes(file.read())
