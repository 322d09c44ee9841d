"""Settings of a start that an orchestrator watches: words for the one table in `configuration_keys`."""

from __future__ import annotations

from typing import Final

TERMINATION_DOC: Final = (
    "File that one line is written to when the service refuses to start or fails: why; /dev/termination-log in a pod"
)
ADVERTISED_CHECK: Final = "advertised.check.timeout.ms"
ADVERTISED_CHECK_DOC: Final = (
    "How long the broker tries, before it registers, to reach itself at its advertised address, and else refuses to "
    "start; 0: not at all, for an address that leads here from elsewhere only"
)
