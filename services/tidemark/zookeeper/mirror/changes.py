# SPDX-License-Identifier: Apache-2.0
"""The parts of the mirror that must be read again, from the paths of changed znodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidemark.model import TopicPartition
from tidemark.zookeeper import paths
from tidemark.zookeeper.draining import DRAINING_BROKERS

ROOTS: Final = (paths.TOPICS, paths.TOPIC_CONFIGS, paths.BROKERS, paths.CONTROLLER, DRAINING_BROKERS)
"""A change below one of these paths changes a description of the cluster."""
_STATE: Final = "leaderAndISR"


@dataclass(slots=True)
class Changes:
    """The parts of the mirror that changed since the last read.

    Attributes:
        everything: no part of the mirror is known to be up to date.
        topics: their znodes, settings or schemas.
        states: leaderAndISR znodes.
    """

    everything: bool = False
    brokers: bool = False
    controller: bool = False
    draining: bool = False
    topics: set[str] = field(default_factory=set)
    states: set[TopicPartition] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether there is a change."""
        alone = self.everything or self.brokers or self.controller or self.draining
        return bool(alone or self.topics or self.states)

    def note(self, path: str) -> None:
        """A znode was created, changed or deleted."""
        if path.startswith(paths.TOPICS + "/"):
            self._note_topic(path[len(paths.TOPICS) + 1 :].split("/"))
        elif path.startswith(paths.TOPIC_CONFIGS + "/"):
            # a change of the topic's settings or schema
            self.topics.add(path[len(paths.TOPIC_CONFIGS) + 1 :].partition("/")[0])
        elif path.startswith(paths.BROKERS + "/"):
            self.brokers = True
        elif path == paths.CONTROLLER:
            self.controller = True
        elif path.startswith(DRAINING_BROKERS):
            self.draining = True
        else:
            self.everything = True  # a parent of many znodes was deleted or written manually

    def _note_topic(self, names: list[str]) -> None:
        if len(names) == 1:
            self.topics.add(names[0])
        elif len(names) == 3 and names[2] == _STATE and (number := paths.number_in(names[1])) is not None:
            self.states.add(TopicPartition(names[0], number))

    def add(self, other: Changes) -> None:
        """Read the parts of `other` too."""
        self.everything |= other.everything
        self.brokers |= other.brokers
        self.controller |= other.controller
        self.draining |= other.draining
        self.topics |= other.topics
        self.states |= other.states
