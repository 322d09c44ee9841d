# SPDX-License-Identifier: Apache-2.0
"""One row of the table of settings: a key with type, unit, range, default and scope, and the parser of its values."""

from __future__ import annotations

import contextlib
from dataclasses import Field, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tidemark.core.security.principals import ANONYMOUS, can_be_a_user
from tidemark.model import ErrorCode, TidemarkError, decimal_number, whole_number
from tidemark.runtime.host_port import HostPort, Listeners

UNLIMITED: Final = -1
"""Value of a limit that is disabled."""

I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1


class Kind(StrEnum):
    """Type of the value of a setting."""

    STRING = "string"
    INT = "int"
    RATIO = "ratio"
    BOOL = "bool"
    CHOICE = "choice"
    ADDRESS = "host:port"
    PATHS = "paths"
    PRINCIPALS = "principals"
    LISTENERS = "listeners"


class Scope(StrEnum):
    """When a setting can change: at start only, while a broker runs, or per topic."""

    STATIC = "static"
    BROKER_DYNAMIC = "broker-dynamic"
    TOPIC = "topic"


_KINDS: Final = {
    "str": Kind.STRING,
    "int": Kind.INT,
    "float": Kind.RATIO,
    "bool": Kind.BOOL,
    "HostPort": Kind.ADDRESS,
    "HostPort | None": Kind.ADDRESS,
    "tuple[Path, ...]": Kind.PATHS,
    "tuple[str, ...]": Kind.PRINCIPALS,
    "Listeners": Kind.LISTENERS,
    "Listeners | None": Kind.LISTENERS,
}
"""Kinds by the annotation of the field; one with choices is a CHOICE."""
_UNITS: Final = {"ms": "ms", "minutes": "min", "bytes": "bytes", "second": "bytes/s"}
"""Units by the last word of the name."""

Value = str | int | float | bool | HostPort | tuple[Path, ...] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One row of the table of settings.

    Attributes:
        owners: services (or "topic") that have this setting: some of "broker", "controller", "admin",
            "console", "topic".
        default: the default as text; None: required; "": optional, and the value is then None (for a string "").
        defaults: (owner, default) for owners whose default differs.
        minimum: smallest value, inclusive.
        maximum: largest value, inclusive.
        unlimited: whether -1 is also valid and means no limit.
    """

    name: str
    kind: Kind
    owners: tuple[str, ...]
    default: str | None
    doc: str
    unit: str = ""
    minimum: int = 0
    maximum: int = I64_MAX
    unlimited: bool = False
    choices: tuple[str, ...] = ()
    scope: Scope = Scope.STATIC
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def attribute(self) -> str:
        """Name of the attribute in the settings classes."""
        return self.name.replace(".", "_")

    @property
    def environment_name(self) -> str:
        """Name of the environment variable of the setting."""
        return "TIDEMARK_" + self.attribute.upper()

    def default_for(self, owner: str) -> str | None:
        """Default of one owner, as text."""
        return dict(self.defaults).get(owner, self.default)

    def scope_for(self, owner: str) -> Scope:
        """Scope for one owner: only brokers and topics have dynamic settings."""
        return self.scope if owner in ("broker", "topic") else Scope.STATIC

    @property
    def valid_values(self) -> str:
        """Description of the valid values."""
        if self.kind is Kind.CHOICE:
            return " | ".join(self.choices)
        if self.kind is Kind.BOOL:
            return "true | false"
        if self.kind is Kind.ADDRESS:
            return "host:port"
        if self.kind is Kind.LISTENERS:
            return "host:port, or name://host:port separated by commas"
        if self.kind is Kind.PATHS:
            return "paths, separated by commas"
        if self.kind is Kind.PRINCIPALS:
            return "principals (User:NAME), separated by semicolons"
        if self.kind is Kind.RATIO:
            return "0 to 1"
        if self.kind is Kind.INT:
            top = "" if self.maximum in (I64_MAX, I32_MAX) else f" to {self.maximum}"
            return f"{self.minimum}{top or ' and up'}" + (", -1 for no limit" if self.unlimited else "")
        return "any text"

    def parse(self, text: str) -> Value:
        """Value of `text`; raises TidemarkError(INVALID_CONFIG), whose message has the valid values."""
        text = text.strip()
        if text == "" and self.default == "":
            empty: dict[Kind, Value] = {Kind.STRING: "", Kind.PRINCIPALS: ()}
            return empty.get(self.kind)
        try:
            return self._parse(text)
        except ValueError as error:
            why = str(error)
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG, f"{self.name} is {text!r}: {why}", {"config": self.name, "value": text}
        )

    def parse_stored(self, text: str) -> Value:
        """As `parse`, for a stored value: 0.1.0 took numbers such as 1_000, and stored the text."""
        reads: dict[Kind, type[int] | type[float]] = {Kind.INT: int, Kind.RATIO: float}
        if self.kind in reads:
            with contextlib.suppress(ValueError):
                text = str(reads[self.kind](text))
        return self.parse(text)

    def _parse(self, text: str) -> Value:
        if self.kind is Kind.INT:
            return self._parse_int(text)
        if self.kind is Kind.RATIO:
            return self._parse_ratio(text)
        if self.kind is Kind.BOOL:
            if text.lower() not in ("true", "false"):
                raise ValueError("expected true or false")
            return text.lower() == "true"
        if self.kind is Kind.CHOICE:
            if text not in self.choices:
                raise ValueError(f"expected {' or '.join(self.choices)}")
            return text
        if self.kind is Kind.ADDRESS:
            return HostPort.parse(text)
        if self.kind is Kind.LISTENERS:
            return Listeners.parse(text)
        if self.kind in (Kind.PRINCIPALS, Kind.PATHS):
            return self._parse_list(text)
        if not text:
            raise ValueError("it must not be empty")
        return text

    def _parse_list(self, text: str) -> Value:
        if self.kind is Kind.PRINCIPALS:
            principals = tuple(part.strip() for part in text.split(";") if part.strip())
            for one in principals:
                _check_super_user(one)
            return principals
        paths = tuple(Path(part.strip()) for part in text.split(",") if part.strip())
        if not paths or len(set(paths)) != len(paths):
            raise ValueError("expected one or more different paths, separated by commas")
        return paths

    def _parse_ratio(self, text: str) -> float:
        value = decimal_number(text)
        if value is None or not 0 <= value <= 1:
            raise ValueError("expected a number of 0 to 1")
        return value

    def _parse_int(self, text: str) -> int:
        value = whole_number(text)
        if value is None:
            raise ValueError(f"expected a whole number{self._in_unit()}")
        if self.unlimited and value == UNLIMITED:
            return value
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"expected {self.valid_values}{self._in_unit()}")
        return value

    def _in_unit(self) -> str:
        return f" ({self.unit})" if self.unit else ""


def setting(
    default: str | float | None,
    doc: str,
    *,
    unit: str | None = None,
    minimum: int = 0,
    maximum: int = I64_MAX,
    unlimited: bool = False,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    defaults: tuple[tuple[str, str], ...] = (),
) -> Any:
    """A field of a settings class; name, type and owners of its row follow from the field.

    Args:
        default: None: required; "": optional.
        doc: the meaning.
        unit: None: the unit that the name ends with, if any.
        minimum: smallest value, inclusive.
        maximum: largest value, inclusive.
        unlimited: whether -1 is also valid and means no limit.
        choices: the valid values.
        dynamic: whether brokers apply a change while they run.
        defaults: (owner, default) for owners whose default differs.
    """
    text = default if default is None else str(default).lower() if isinstance(default, bool) else str(default)
    limits = {"minimum": minimum, "maximum": maximum, "unlimited": unlimited}
    others = {"choices": choices, "dynamic": dynamic, "defaults": defaults}
    return field(metadata={"default": text, "doc": doc, "unit": unit, **limits, **others})


def row_of(found: Field[Any], owners: tuple[str, ...]) -> ConfigKey:
    """The row of a field of a settings class."""
    row = dict(found.metadata)
    kind = Kind.CHOICE if row["choices"] else _KINDS[str(found.type)]
    scope = Scope.BROKER_DYNAMIC if row.pop("dynamic") else Scope.TOPIC if owners == ("topic",) else Scope.STATIC
    if row["unit"] is None:
        row["unit"] = _UNITS.get(found.name.rpartition("_")[2], "")
    return ConfigKey(name=found.name.replace("_", "."), kind=kind, owners=owners, scope=scope, **row)


def _check_super_user(principal: str) -> None:
    if principal == ANONYMOUS.name:
        raise ValueError(f"{principal} means all callers without an identity, which would get all rights")
    if principal.endswith((":*", "=*")):
        raise ValueError(f"no caller is {principal}: name each super user separately, without *")
    if not can_be_a_user(principal):
        raise ValueError(
            f"no caller is {principal}; expected principals (User:NAME), separated by semicolons, such as "
            "User:tidemark://shop/user/alice or User:token:alice"
        )
