# SPDX-License-Identifier: Apache-2.0
"""Makes instances of an application's class of the columns of a record, nested dataclasses too."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
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


def _model_maker(model: type, validate: Callable[..., Any]) -> MakeValue:
    """Columns are names of fields, or aliases; pydantic prefers an alias, even to a field of that name."""
    models: dict[type, dict[str, set[str]]] = {}
    _add_models(model, models)
    fields = [field for found in models.values() for field in found.items()]
    if not any((aliases - {name}) & found.keys() for found in models.values() for name, aliases in found.items()):
        return partial(validate, **_BY_BOTH)
    only = {alias for _, aliases in fields for alias in aliases} - {name for name, _ in fields}
    return lambda row: validate(row, **(_BY_NAMES if only.isdisjoint(_columns(row)) else _BY_BOTH))


def _add_models(hint: Any, models: dict[type, dict[str, set[str]]]) -> None:
    """Add the models in this type, with the aliases of their fields by name."""
    parts = typing.get_args(hint)
    if isinstance(hint, type) and hint not in models and isinstance(found := getattr(hint, "model_fields", None), dict):
        models[hint] = {name: _aliases(field) for name, field in found.items()}
        parts = tuple(field.annotation for field in found.values())
    for part in parts:
        _add_models(part, models)


def _aliases(field: Any) -> set[str]:
    """Columns that pydantic prefers to the field's name: of one alias, or of AliasChoices and AliasPaths."""
    choices = getattr(field.validation_alias, "choices", [field.validation_alias])
    return {getattr(one, "path", [one])[0] for one in choices} - {None}


def _columns(value: Any) -> Iterator[str]:
    """The columns of a row, and of the rows in it."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _columns(one)


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
