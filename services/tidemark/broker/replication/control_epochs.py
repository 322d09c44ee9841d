# SPDX-License-Identifier: Apache-2.0
"""The epochs of the controller's calls, checked before any field of a call is used (rule F4)."""

from __future__ import annotations

from tidemark.broker.node.own_epoch import UNREGISTERED, OwnEpoch
from tidemark.model import BrokerEpoch, ControllerEpoch, ErrorCode, TidemarkError


class ControlEpochs:
    """Refuses deposed controllers, and commands for another registration of this broker.

    Invariant: the controller epoch of accepted commands never decreases.

    Args:
        own: this broker's epoch; an unregistered broker refuses every command.
    """

    def __init__(self, own: OwnEpoch) -> None:
        self._own = own
        self._controller_epoch = ControllerEpoch(-1)

    def check(self, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch) -> None:
        """Accept the header of a command; the core checks again, in the order of its events.

        Raises:
            TidemarkError: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH.
        """
        self.check_controller(controller_epoch)
        own = self._own.value
        if broker_epoch != own or own == UNREGISTERED:
            raise TidemarkError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command is for broker epoch {broker_epoch}; this broker's is {own}",
                {"broker_epoch": str(own)},
            )
        self._controller_epoch = controller_epoch

    def check_controller(self, controller_epoch: ControllerEpoch) -> None:
        """Check the controller epoch only, as for a ping.

        Raises:
            TidemarkError: STALE_CONTROLLER_EPOCH.
        """
        if controller_epoch < self._controller_epoch:
            raise TidemarkError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch} is older than {self._controller_epoch}",
                {"controller_epoch": str(self._controller_epoch)},
            )
