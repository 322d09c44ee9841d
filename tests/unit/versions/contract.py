# SPDX-License-Identifier: Apache-2.0
"""The contract of the generated stubs as lines: a message, an enum or a service, with numbers, names and types.

For a new version: `python -m tests.unit.versions.contract > tests/unit/versions/contract_0_2_0.txt`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import tidemark.v1
from google.protobuf import descriptor_pb2 as pb


def contract() -> dict[str, set[str]]:
    """Fields by name of a message, values by name of an enum, calls by name of a service.

    A field whose number is reserved has the type "reserved", and no name.
    """
    found: dict[str, set[str]] = {}
    for module in pkgutil.iter_modules(tidemark.v1.__path__):
        if module.name.endswith("_pb2"):
            file = pb.FileDescriptorProto()
            importlib.import_module(f"tidemark.v1.{module.name}").DESCRIPTOR.CopyToProto(file)
            for message in file.message_type:
                found.update(_messages(message, file.package))
            for enum in file.enum_type:
                found[f"{file.package}.{enum.name}"] = {f"{one.number} {one.name}" for one in enum.value}
            for service in file.service:
                calls = {f"{one.name} {one.input_type} {one.output_type}" for one in service.method}
                found[f"{file.package}.{service.name}"] = calls
    return found


def parse(text: str) -> dict[str, set[str]]:
    """The contract in the lines of `lines`."""
    parts = (line.split(": ", 1) for line in text.splitlines())
    return {name: set(filter(None, rest.split(", "))) for name, rest in parts}


def lines() -> str:
    """The contract as text."""
    return "".join(f"{name}: {', '.join(sorted(parts))}\n" for name, parts in sorted(contract().items()))


def _messages(message: Any, scope: str) -> Iterator[tuple[str, set[str]]]:
    name = f"{scope}.{message.name}"
    fields = {_field(one) for one in message.field}
    fields |= {f"{one} reserved" for span in message.reserved_range for one in range(span.start, span.end)}
    yield name, fields
    for nested in message.nested_type:
        yield from _messages(nested, name)


def _field(field: Any) -> str:
    kind = field.type_name or pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = "repeated " if field.label == pb.FieldDescriptorProto.LABEL_REPEATED else ""
    return f"{field.number} {field.name} {repeated}{kind}"


if __name__ == "__main__":
    sys.stdout.write(lines())
