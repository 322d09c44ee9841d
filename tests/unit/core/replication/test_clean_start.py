# SPDX-License-Identifier: Apache-2.0
"""Rule T1: which registrations are clean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.replication.clean_start import DirectoryEvidence, judge_registration
from tidemark.model import BrokerEpoch, BrokerEpochRecord

PREVIOUS = BrokerEpochRecord(BrokerEpoch(7), directory_ids=("a", "b"))
SHUT_DOWN = DirectoryEvidence("a", shutdown_epoch=BrokerEpoch(7))
KILLED = DirectoryEvidence("b", boot_id="boot", incarnation_epoch=BrokerEpoch(7), synced=True)


def judge(*directories: DirectoryEvidence, trust_boot_id: bool = True, boot_id: str = "boot") -> tuple[bool, str]:
    verdict = judge_registration(PREVIOUS, directories, boot_id=boot_id, trust_boot_id=trust_boot_id)
    return verdict.clean, verdict.reason


def test_the_first_registration_is_clean() -> None:
    assert judge_registration(None, [], boot_id="boot", trust_boot_id=False).clean


def test_a_shut_down_directory_and_one_whose_page_cache_survived_are_clean() -> None:
    assert judge(SHUT_DOWN, KILLED)[0]


def test_a_start_after_a_kill_is_a_crash_and_one_after_a_clean_stop_is_none() -> None:
    stopped = [SHUT_DOWN, replace(SHUT_DOWN, directory_id="b")]
    for directories, crashed in ((stopped, False), ([SHUT_DOWN, KILLED], True), ([SHUT_DOWN], True)):
        verdict = judge_registration(PREVIOUS, directories, boot_id="boot", trust_boot_id=True)
        assert verdict.crashed == crashed, verdict
    assert not judge_registration(None, [], boot_id="boot", trust_boot_id=True).crashed


def test_a_directory_that_is_new_needs_no_proof() -> None:
    assert judge(SHUT_DOWN, KILLED, DirectoryEvidence("new"))[0]


def test_a_missing_directory_is_unclean_and_named() -> None:
    verdict = judge_registration(PREVIOUS, [SHUT_DOWN], boot_id="boot", trust_boot_id=True)
    assert not verdict.clean
    assert verdict.missing == ("b",)
    assert not verdict.flushed_kept
    assert "b" in verdict.reason


def test_one_doubtful_directory_makes_the_registration_unclean() -> None:
    assert not judge(SHUT_DOWN, DirectoryEvidence("b"))[0]


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(KILLED, boot_id="earlier"), "rebooted"),
        (replace(KILLED, boot_id=""), "error of its disk"),
        (replace(KILLED, incarnation_epoch=BrokerEpoch(6)), "broker epoch 6, not 7"),
        (replace(KILLED, incarnation_epoch=None), "broker epoch None"),
        (replace(KILLED, synced=False), "syncing"),
        (DirectoryEvidence("b", shutdown_epoch=BrokerEpoch(6)), "broker epoch None"),
        (DirectoryEvidence("b", shutdown_epoch=BrokerEpoch(8)), "broker epoch None"),
    ],
)
def test_a_directory_that_may_have_lost_records_is_unclean_with_a_reason(evidence: DirectoryEvidence, why: str) -> None:
    clean, reason = judge(SHUT_DOWN, evidence)
    assert not clean
    assert why in reason


def test_on_network_volumes_the_boot_id_proves_nothing_but_a_clean_shutdown_does() -> None:
    assert not judge(SHUT_DOWN, KILLED, trust_boot_id=False)[0]
    assert judge(SHUT_DOWN, replace(KILLED, shutdown_epoch=BrokerEpoch(7)), trust_boot_id=False)[0]


def test_without_a_boot_id_nothing_proves_the_page_cache() -> None:
    assert not judge(SHUT_DOWN, replace(KILLED, boot_id=""), boot_id="")[0]


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        (replace(KILLED, boot_id="earlier"), True),
        (replace(KILLED, boot_id=""), True),
        (replace(KILLED, incarnation_epoch=BrokerEpoch(6)), False),
        (DirectoryEvidence("b"), False),
    ],
)
def test_flushed_records_survive_a_power_loss_but_not_a_directory_restored_from_earlier(
    evidence: DirectoryEvidence, kept: bool
) -> None:
    verdict = judge_registration(PREVIOUS, [SHUT_DOWN, evidence], boot_id="boot", trust_boot_id=True)
    assert (verdict.clean, verdict.flushed_kept) == (False, kept)
