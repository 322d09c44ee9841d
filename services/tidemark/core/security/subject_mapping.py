# SPDX-License-Identifier: Apache-2.0
"""Identities from the subjects of certificates, by rules as Kafka's `ssl.principal.mapping.rules` has them. Pure.

A mapped name is a separate kind of user, `User:CN=NAME`: no URI, token or service account has a name with this start.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from tidemark.core.security.principals import ANONYMOUS, Principal

_PREFIX: Final = "CN="
_CHARACTERS_MAX: Final = 255
_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_GROUP: Final = re.compile(r"\$(\d)")
"""Matches a group of the pattern in the new name. All other characters are literal."""


class _Rule(NamedTuple):
    """One rule that maps the subject of a certificate to a user name.

    Attributes:
        pattern: matches the whole subject; None: DEFAULT, the name is the subject.
        name: the new name, with $1 for the first group of the pattern.
        case: L or U: in small letters, or in capitals.
    """

    pattern: re.Pattern[str] | None
    name: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """The name without its prefix; None if the rule does not match."""
        if self.pattern is None:
            return subject.removeprefix(_PREFIX) if subject.startswith(_PREFIX) else None
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = _GROUP.sub(lambda group: found[int(group[1])] or "", self.name)
        return _in_case(name, self.case)


def _in_case(name: str, case: str) -> str:
    """The name in small letters or capitals; "" if a letter of another alphabet would become an ASCII letter."""
    changed = [{"L": one.lower(), "U": one.upper()}.get(case, one) for one in name]
    poses = any(after.isascii() and not before.isascii() for before, after in zip(name, changed, strict=True))
    return "" if poses else "".join(changed)


class SubjectMapping:
    """Maps subjects; the first rule that matches decides.

    Args:
        text: the setting: `RULE:PATTERN/NAME/`, `RULE:PATTERN/NAME/L` or `/U`, or `DEFAULT`, separated by commas.

    Raises:
        ValueError: the text has another form, or a pattern is not a regular expression.
    """

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(f"expected RULE:PATTERN/NAME/, RULE:PATTERN/NAME/L, /U or DEFAULT at {text[at:]!r}")
            self._rules.append(_rule_of(found))
            at = found.end()
        if not self._rules:
            raise ValueError("expected RULE:PATTERN/NAME/ or DEFAULT")
        self.principal_of = lru_cache(maxsize=4096)(self._principal_of)

    def _principal_of(self, subject: str) -> Principal:
        """The user with this subject; ANONYMOUS if no rule matches, or the name is empty, long or not printable."""
        names = (rule.apply(subject) for rule in self._rules) if subject else ()
        name = next((name for name in names if name is not None), "")
        if not name or len(name) > _CHARACTERS_MAX or not name.isprintable():
            return ANONYMOUS
        return Principal(f"User:{_PREFIX}{name}")


def _rule_of(found: re.Match[str]) -> _Rule:
    if found["default"]:
        return _Rule(None)
    try:
        pattern = re.compile(found["pattern"].replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"{found['pattern']!r} is not a regular expression: {error}") from None
    name = found["name"].replace("\\/", "/")
    if missing := [group for group in _GROUP.findall(name) if int(group) > pattern.groups]:
        raise ValueError(f"{found['pattern']!r} has no group ${missing[0]}")
    return _Rule(pattern, name, found["case"])
