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
from urllib.parse import quote

_METADATA: Final = "metadata"
_HADOOPS_PATH: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(//[^/]*)?(.*)", re.DOTALL)
"""Scheme, authority and path. The path is a name that Hadoop does not decode: %20 stays three characters."""
_HADOOPS_S3: Final = ("s3a", "s3n")


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
    found = _HADOOPS_PATH.fullmatch(checkpoint)
    assert found is not None, "each part is optional"
    scheme, authority, name = (found[1] or "").lower(), found[2] or "", found[3]
    if not scheme:
        return Path(checkpoint, _METADATA).read_bytes()
    if scheme == "file":
        return Path(name, _METADATA).read_bytes()
    from pyarrow.fs import FileSystem  # a separate library: only for checkpoints that need it

    system, path = FileSystem.from_uri(f"{'s3' if scheme in _HADOOPS_S3 else scheme}:{authority}{quote(name)}")
    with system.open_input_file(f"{path}/{_METADATA}") as file:
        return bytes(file.read())
