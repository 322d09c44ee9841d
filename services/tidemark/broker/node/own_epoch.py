# SPDX-License-Identifier: Apache-2.0
"""The broker epoch of this broker, as all its parts see it."""

from __future__ import annotations

from typing import Final

from tidemark.model import BrokerEpoch

UNREGISTERED: Final = BrokerEpoch(-1)


class OwnEpoch:
    """The broker epoch of the current registration; UNREGISTERED while the broker has none.

    Invariant: `value` changes before the core receives the same change as an event. No part of the broker acts under
    an old registration in between.
    """

    def __init__(self, value: BrokerEpoch = UNREGISTERED) -> None:
        self.value = value
