# SPDX-License-Identifier: Apache-2.0
"""The driver of a term, as the process makes one."""

from __future__ import annotations

from tidemark.controller.assembly import new_term
from tidemark.controller.metrics import ControllerMetrics
from tidemark.controller.term import ActiveTerm
from tidemark.ports import ControllerTerm
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.runtime.configuration.settings import ControllerSettings, load_settings
from tidemark.runtime.metrics import Metrics

from tests.fakes.metadata_store import FakeMetadataStore, ManualClock


def term_of(won: ControllerTerm, store: FakeMetadataStore) -> ActiveTerm:
    settings = load_settings(ControllerSettings, ["--controller.id", "100", "--zookeeper.connect", "none:1"], {})
    metrics = ControllerMetrics(Metrics())
    clock, receiver = ManualClock(), ReceiverCheck()
    return new_term(won, "cluster", settings=settings, store=store, clock=clock, metrics=metrics, receiver=receiver)
