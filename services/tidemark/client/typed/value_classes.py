# SPDX-License-Identifier: Apache-2.0
"""Makes instances of an application's class of the columns of a record, nested dataclasses too."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Final

MakeValue = Callable[[dict[str, Any]], Any]
"""Makes the value of a record of its columns."""

_LISTS: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPS: Final = (dict, collections.abc.Mapping)
_BY_BOTH: Final = {"by_alias": True, "by_name": True}
_BY_NAMES: Final = {"by_alias": False, "by_name": True}
_UNIONS: Final = (typing.Union, types.UnionType)


def maker_of(value_class: type | None) -> MakeValue | None:
    """A function that makes instances of a dataclass, a pydantic model or another class with keyword arguments.

    Columns that a dataclass has no field for are omitted.

    Raises:
        TypeError: `value_class` is not a class.
    """
    if value_class is None:
        return None
    if not isinstance(value_class, type):
        raise TypeError(f"value_class is {value_class!r}, not a class")
    validate = getattr(value_class, "model_validate", None)
    if callable(validate):
        return _model_maker(value_class, validate) if _takes_names(validate) else typing.cast(MakeValue, validate)
    if dataclasses.is_dataclass(value_class):
        return _dataclass_maker(value_class, {})
    return lambda row: value_class(**row)


def _takes_names(validate: Callable[..., Any]) -> bool:
    """Whether this pydantic, from 2.11 on, takes the names of fields besides their aliases."""
    try:
        return _BY_BOTH.keys() <= inspect.signature(validate).parameters.keys()
    except ValueError:
        return False


def _model_maker(model: Any, validate: Callable[..., Any]) -> MakeValue:
    """Columns are names of fields, or aliases; pydantic prefers an alias, even to a field of that name."""
    if not _crosses(model, set()):
        return partial(validate, **_BY_BOTH)
    aliases = {_alias(field) for field in model.model_fields.values()} - model.model_fields.keys()
    return lambda row: validate(row, **(_BY_NAMES if aliases.isdisjoint(row) else _BY_BOTH))


def _crosses(hint: Any, seen: set[type]) -> bool:
    """Whether a model in this type has a field whose alias is the name of another field."""
    parts = typing.get_args(hint)
    if isinstance(hint, type) and hint not in seen and isinstance(fields := getattr(hint, "model_fields", None), dict):
        seen.add(hint)
        if any(name != _alias(field) in fields for name, field in fields.items()):
            return True
        parts = tuple(field.annotation for field in fields.values())
    return any(_crosses(part, seen) for part in parts)


def _alias(field: Any) -> str | None:
    return field.validation_alias if isinstance(field.validation_alias, str) else None  # not one of several


def _dataclass_maker(kind: type, made: dict[type, MakeValue]) -> MakeValue:
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    nested: dict[str, Callable[[Any], Any]] = {}

    def make(row: dict[str, Any]) -> Any:
        given = {name: value for name, value in row.items() if name in names}
        for name, convert in nested.items():
            if given.get(name) is not None:
                given[name] = convert(given[name])
        return kind(**given)

    made[kind] = make  # set before the fields are: a class may have fields of the same class
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a class of a function, whose annotations are texts: nested values stay dicts
        hints = {}
    nested.update({name: convert for name in names if (convert := _converter(hints.get(name), made)) is not None})
    return make


def _converter(hint: Any, made: dict[type, MakeValue]) -> Callable[[Any], Any] | None:
    """A function that makes the dataclasses in a value that is not null; None: the type has no dataclasses."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return made.get(hint) or _dataclass_maker(hint, made)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        found = [one for one in (_converter(argument, made) for argument in arguments) if one is not None]
        return found[0] if len(found) == 1 else None
    if origin in _LISTS and len(arguments) == 1:
        element = _converter(arguments[0], made)
        return element and (lambda values: [None if one is None else element(one) for one in values])
    if origin is tuple and arguments[1:] == (...,):
        part = _converter(arguments[0], made)
        return part and (lambda values: tuple(None if one is None else part(one) for one in values))
    if origin in _MAPS and len(arguments) == 2:
        item = _converter(arguments[1], made)
        return item and (lambda values: {name: None if one is None else item(one) for name, one in values.items()})
    return None
