# SPDX-License-Identifier: Apache-2.0
"""Values of settings as text, which the protocol carries."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

ConfigValue = str | int | float | bool
"""A value of a setting: text, a number or a boolean."""


def config_texts(name: str, configs: Mapping[str, ConfigValue] | None) -> dict[str, str]:
    """Return the settings of the argument `name` as text; raises TypeError."""
    if configs is None:
        return {}
    if not isinstance(configs, Mapping):
        raise TypeError(f"{name} is a {type(configs).__name__}, not a mapping of settings and values")
    return {_key(name, key): _text(f"{name}[{key!r}]", value) for key, value in configs.items()}


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name}: {key!r} is a {type(key).__name__}, not the name of a setting")
    return key


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    if value is None:
        raise TypeError(f"{name} is None: name the setting in delete= to remove its value")
    try:
        return str(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}, not a text, number or boolean") from None
