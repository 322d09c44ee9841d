# SPDX-License-Identifier: Apache-2.0
"""Looking after consumer groups, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from tidemark.client.aio.groups import GroupDescription, GroupListing
from tidemark.client.aio.groups import Groups as AsyncGroups
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.model import TidemarkError, TopicPartition

_START_S: Final = 30.0


class Groups:
    """As `tidemark.client.aio.Groups`, blocking.

    with Groups("127.0.0.1:9192") as groups:
        for one in groups.describe_groups(["readers"]):
            ...
    """

    def __init__(self, bootstrap: str | None = None, *, timeout_s: float = 30.0) -> None:
        self._groups = AsyncGroups(bootstrap, timeout_s=timeout_s)
        self._background = background_loop()
        try:
            self._background.call(self._groups.start(), _START_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every connection."""
        if not self._background.forked:
            self._background.call(self._groups.close())

    def list_groups(self) -> tuple[list[GroupListing], list[TidemarkError]]:
        """All groups by id, and why some may be missing: brokers that do not answer, or still read what they know."""
        return self._background.call(self._groups.list_groups())

    def describe_groups(self, groups: Sequence[str], *, offsets: bool = True) -> list[GroupDescription]:
        """In the order asked for; raises GROUP_NOT_FOUND."""
        return self._background.call(self._groups.describe_groups(groups, offsets=offsets))

    def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, validate_only: bool = False
    ) -> dict[TopicPartition, TidemarkError]:
        """Have a group without members go on elsewhere; gives what was refused."""
        return self._background.call(self._groups.set_offsets(group, offsets, validate_only=validate_only))

    def delete(self, group: str) -> None:
        """Forget a group without members; raises GROUP_NOT_EMPTY, GROUP_NOT_FOUND."""
        self._background.call(self._groups.delete(group))

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TidemarkError]:
        """Forget how far a group has read in these; gives what was refused."""
        return self._background.call(self._groups.delete_offsets(group, partitions))
