# SPDX-License-Identifier: Apache-2.0
"""The assignors, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemark.core.groups.assignors.plan import Assignor
from tidemark.core.groups.assignors.range import assign_range
from tidemark.core.groups.assignors.sticky import assign_sticky
from tidemark.core.groups.assignors.uniform import assign_uniform

ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "sticky": assign_sticky,
    "uniform": assign_uniform,
    "range": assign_range,
}
