# SPDX-License-Identifier: Apache-2.0
"""The epochs that a broker accepts in the controller's calls (rule F4)."""

from __future__ import annotations

import pytest
from tidemark.broker.node.own_epoch import UNREGISTERED, OwnEpoch
from tidemark.broker.replication.control_epochs import ControlEpochs
from tidemark.model import BrokerEpoch, ControllerEpoch, ErrorCode, TidemarkError

from tests.refusals import raises_code

FIRST, SECOND = ControllerEpoch(1), ControllerEpoch(2)
OWN = BrokerEpoch(7)


def refusal(epochs: ControlEpochs, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch) -> TidemarkError:
    with pytest.raises(TidemarkError) as raised:
        epochs.check(controller_epoch, broker_epoch)
    return raised.value


def test_a_deposed_controller_is_refused_with_the_epoch_of_its_successor() -> None:
    epochs = ControlEpochs(OwnEpoch(OWN))
    epochs.check(SECOND, OWN)
    error = refusal(epochs, FIRST, OWN)
    assert (error.code, error.metadata) == (ErrorCode.STALE_CONTROLLER_EPOCH, {"controller_epoch": "2"})
    epochs.check(SECOND, OWN)


@pytest.mark.parametrize("broker_epoch", [BrokerEpoch(6), BrokerEpoch(8), UNREGISTERED])
def test_a_command_for_another_registration_is_refused(broker_epoch: BrokerEpoch) -> None:
    error = refusal(ControlEpochs(OwnEpoch(OWN)), FIRST, broker_epoch)
    assert (error.code, error.metadata) == (ErrorCode.STALE_BROKER_EPOCH, {"broker_epoch": "7"})


def test_an_unregistered_broker_refuses_every_command() -> None:
    error = refusal(ControlEpochs(OwnEpoch()), FIRST, UNREGISTERED)
    assert error.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_refused_command_does_not_depose_a_controller() -> None:
    epochs = ControlEpochs(OwnEpoch(OWN))
    refusal(epochs, SECOND, BrokerEpoch(6))
    epochs.check(FIRST, OWN)


def test_a_ping_is_checked_for_the_controller_epoch_only_and_deposes_no_controller() -> None:
    epochs = ControlEpochs(OwnEpoch())
    epochs.check_controller(SECOND)
    epochs.check_controller(FIRST)


def test_a_command_that_a_later_one_has_overtaken_is_refused_within_a_term() -> None:
    epochs = ControlEpochs(OwnEpoch(OWN))
    epochs.check(FIRST, OWN, 8)
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        epochs.check(FIRST, OWN, 7)
    epochs.check(FIRST, OWN, 8)
    epochs.check(SECOND, OWN, 1)
