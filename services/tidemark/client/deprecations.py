# SPDX-License-Identifier: Apache-2.0
"""Old names of arguments, which are still accepted."""

from __future__ import annotations

import warnings


def timeout_of(timeout_s: float | None, timeout: float | None) -> float | None:
    """Return the timeout in seconds of a method that had the argument `timeout` in version 0.1."""
    if timeout is None:
        return timeout_s
    warnings.warn("the argument timeout is deprecated: call it timeout_s", DeprecationWarning, stacklevel=3)
    return timeout
