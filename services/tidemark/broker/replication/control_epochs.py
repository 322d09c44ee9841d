# SPDX-License-Identifier: Apache-2.0
"""The epochs and the order of the controller's calls, checked before any field of a call is used (rule F4)."""

from __future__ import annotations

from tidemark.broker.node.own_epoch import UNREGISTERED, OwnEpoch
from tidemark.model import BrokerEpoch, ControllerEpoch, ErrorCode, TidemarkError


class ControlEpochs:
    """Refuses deposed controllers, commands for another registration of this broker, and overtaken commands.

    Invariant: neither the controller epoch of accepted commands nor, within a controller epoch, the sequence decreases.

    Args:
        own: this broker's epoch; an unregistered broker refuses every command.
    """

    def __init__(self, own: OwnEpoch) -> None:
        self._own = own
        self._controller_epoch = ControllerEpoch(-1)
        self._sequence = 0

    def check(self, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch, sequence: int = 0) -> None:
        """Accept the header of a command; the core checks again, in the order of its events.

        Args:
            sequence: of a LeaderAndIsr or StopReplica; 0: the command is not numbered.

        Raises:
            TidemarkError: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, REQUEST_TIMED_OUT.
        """
        self.check_controller(controller_epoch)
        own = self._own.value
        if broker_epoch != own or own == UNREGISTERED:
            raise TidemarkError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command is for broker epoch {broker_epoch}; this broker's is {own}",
                {"broker_epoch": str(own)},
            )
        if controller_epoch > self._controller_epoch:
            self._controller_epoch, self._sequence = controller_epoch, 0
        if sequence:
            self._check_order(sequence)

    def _check_order(self, sequence: int) -> None:
        if sequence < self._sequence:
            sentence = f"command {sequence} comes after {self._sequence}"
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
        self._sequence = sequence

    def check_controller(self, controller_epoch: ControllerEpoch) -> None:
        """Check the controller epoch only, as for a heartbeat.

        Raises:
            TidemarkError: STALE_CONTROLLER_EPOCH.
        """
        if controller_epoch < self._controller_epoch:
            raise TidemarkError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch} is older than {self._controller_epoch}",
                {"controller_epoch": str(self._controller_epoch)},
            )
