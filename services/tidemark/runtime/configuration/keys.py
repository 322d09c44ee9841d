# SPDX-License-Identifier: Apache-2.0
"""The table of all settings: dotted keys as in Kafka, with type, unit, range, default, scope and meaning.

Each field of the settings classes is a row. Error messages, `--help` and docs/configuration.md are derived from this
table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.broker_settings import BrokerSettings
from tidemark.runtime.configuration.key import ConfigKey, row_of
from tidemark.runtime.configuration.service_settings import (
    AdminSettings,
    ClientFacingSettings,
    ConsoleSettings,
    ControllerSettings,
    ProcessSettings,
    ServiceSettings,
)
from tidemark.runtime.configuration.topic_settings import TopicSettings

_OWNERS: Final = (BrokerSettings, ControllerSettings, AdminSettings, ConsoleSettings, TopicSettings)
_ORDER: Final = (ServiceSettings, ClientFacingSettings, ProcessSettings, *_OWNERS)
"""Classes in the order of the documentation, which is the order of their own fields."""

KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {
        row.name: row
        for cls in _ORDER
        for row in (
            row_of(field, tuple(one.owner for one in _OWNERS if issubclass(one, cls)))
            for field in fields(cls)
            if field.name in cls.__annotations__
        )
    }
)
"""All rows by name, in the order of the documentation."""


def keys_of(owner: str) -> Mapping[str, ConfigKey]:
    """Rows of one `owner`: "broker", "controller", "admin", "console" or "topic"."""
    return {name: key for name, key in KEYS.items() if owner in key.owners}


def unknown_config(name: str, known: Iterable[str], where: str) -> TidemarkError:
    """UNKNOWN_CONFIG for a key that `where` does not have, with the most similar known key."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; docs/configuration.md lists the settings"
    if name in KEYS:
        hint = f"; it is a setting of: {', '.join(KEYS[name].owners)}"
    return TidemarkError(ErrorCode.UNKNOWN_CONFIG, f"{where} has no setting {name}{hint}", {"config": name})
