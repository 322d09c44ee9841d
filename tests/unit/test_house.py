# SPDX-License-Identifier: Apache-2.0
"""The style of the house, as tests."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 700
FILES_MAX = 25
LICENCE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {".py", ".proto", ".sh", ".awk", ".yaml", ".tpl", ".html", ".css"}
FUNCTION_LINES_MAX = 75
PACKAGES_MIN = 40
"""Fewer packages with imports: the search of this test is wrong."""
PLACES = ("services", "spark", "tests", "bench", "docs", "charts", "deploy", "proto")
MAY_BE_CROWDED = {"services/tidemark/v1": "generated: four files for each of proto/"}

PRODUCTION = sorted(
    path
    for place in ("services", "spark")
    for path in (ROOT / place).rglob("*.py")
    if "v1" not in path.relative_to(ROOT).parts
)
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Facts(NamedTuple):
    """Facts of a file that several tests need; its syntax tree is millions of objects with those of all files.

    Attributes:
        functions: (name, lines).
        imported: (module, names); no names for `import module`.
        swallowed: lines of handlers of every error that do nothing.
    """

    functions: list[tuple[str, int]]
    imported: list[tuple[str, tuple[str, ...]]]
    swallowed: list[int]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements and handlers; no expression, since none has a statement in it."""
    found: list[ast.AST] = [tree]
    while found:
        node = found.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, name, ())


@cache
def facts(path: Path) -> Facts:
    found = Facts([], [], [])
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            found.functions.append((node.name, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.Import):
            found.imported.extend((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "imports are absolute"
            found.imported.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.ExceptHandler) and swallows(node):
            found.swallowed.append(node.lineno)
    return found


def swallows(handler: ast.ExceptHandler) -> bool:
    catches_all = handler.type is None or getattr(handler.type, "id", "") in ("Exception", "BaseException")
    return catches_all and all(isinstance(statement, ast.Pass) for statement in handler.body)


def test_no_file_is_longer_than_the_limit() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in PRODUCTION}
    assert not {name: count for name, count in lines.items() if count > LINES_MAX}


def test_every_function_fits_a_screen() -> None:
    assert not {
        f"{name_of(path)} {name}": lines
        for path in PRODUCTION
        for name, lines in facts(path).functions
        if lines > FUNCTION_LINES_MAX
    }


def crowded(*places: Path) -> dict[Path, int]:
    """The folders with too many files, and the number of each."""
    files = (path for place in places for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {folder: count for folder, count in Counter(file.parent for file in files).items() if count > FILES_MAX}


def test_no_folder_is_crowded() -> None:
    found = crowded(*(ROOT / place for place in PLACES))
    assert {name_of(folder) for folder in found} == set(MAY_BE_CROWDED)


def test_a_folder_with_one_file_too_many_is_crowded(tmp_path: Path) -> None:
    room = tmp_path / "folder" / "room"
    room.mkdir(parents=True)
    for number in range(FILES_MAX):
        (room / f"{number}.yaml").touch()
    assert not crowded(tmp_path)
    (room / "one_more.py").touch()
    assert crowded(tmp_path) == {room: FILES_MAX + 1}


def imports(path: Path, modules: Collection[str]) -> set[str]:
    """The modules among `modules` that a file imports, at run time or for types only, and inside functions too."""
    found: set[str] = set()
    for module, names in facts(path).imported:
        if not names:
            found.add(module)
        for name in names:
            whole = f"{module}.{name}"
            found.add(whole if whole in modules else module)
    return found.intersection(modules)


@cache
def module_imports() -> dict[str, set[str]]:
    services = ROOT / "services"
    modules = {
        ".".join(path.relative_to(services).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (services / "tidemark").rglob("*.py")
    }
    return {name: imports(path, modules) - {name} for name, path in modules.items()}


def package_imports(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Each package, and its sibling packages that its modules import; files outside of packages do not count."""
    packages = {name.rpartition(".")[0] for name in graph} - {""}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for importer, imported_modules in graph.items():
        for imported in imported_modules:
            pairs = zip(accumulate(importer.split("."), dotted), accumulate(imported.split("."), dotted), strict=False)
            ours, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            if {ours, other} <= packages:
                found[ours].add(other)
    return found


def dotted(package: str, name: str) -> str:
    return f"{package}.{name}"


def check_no_cycle(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import one another: {' -> '.join(error.args[1])}")


def test_no_modules_import_one_another_in_a_cycle() -> None:
    check_no_cycle(module_imports())


def test_no_packages_import_one_another_in_a_cycle() -> None:
    graph = package_imports(module_imports())
    assert len(graph) > PACKAGES_MIN
    check_no_cycle(graph)


def test_packages_with_modules_that_import_one_another_are_a_cycle() -> None:
    graph = {"a.b.one": {"a.c.one"}, "a.c.one": {"a.file"}, "a.c.two": {"a.b.two"}, "a.b.two": set(), "a.file": set()}
    assert package_imports(graph) == {"a.b": {"a.c"}, "a.c": {"a.b"}}
    with pytest.raises(pytest.fail.Exception, match=r"a\.[bc] -> a\.[bc] -> a\.[bc]"):
        check_no_cycle(package_imports(graph))


def test_every_source_file_names_its_licence() -> None:
    sources = [
        path
        for place in ("services", "spark", "proto", "charts", "deploy", "bench", "tests")
        for path in (ROOT / place).rglob("*")
        if path.suffix in (SOURCES if place != "tests" else {".py"})
        and "v1" not in path.parent.relative_to(ROOT).parts[2:3]
    ]
    assert len(sources) > len(PRODUCTION) + len(PROTOS)
    assert not [name_of(path) for path in sources if LICENCE not in "\n".join(path.read_text().splitlines()[:2])]


def test_nothing_is_left_for_later() -> None:
    left = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError)\b")
    assert not [f"{name_of(path)}: {word}" for path in PRODUCTION for word in left.findall(path.read_text())]


def test_every_time_limit_holds_in_a_cancelled_task() -> None:
    users = {name_of(path) for path in PRODUCTION if "asyncio.timeout(" in path.read_text()}
    assert users == {"services/tidemark/runtime/clock.py"}


def test_no_error_is_swallowed() -> None:
    assert not [f"{name_of(path)}:{line}" for path in PRODUCTION for line in facts(path).swallowed]


@pytest.mark.parametrize("path", PROTOS, ids=name_of)
def test_every_message_field_and_rpc_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    declares = re.compile(r"^\s*(service|message|enum|rpc|oneof|(?:repeated |optional )?[\w.<>, ]+ \w+ = \d+)\b")
    bare = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(lines, start=1)
        if declares.match(line) and not lines[number - 2].strip().startswith("//") and "//" not in line
    ]
    assert not bare


@pytest.mark.parametrize("path", PROTOS, ids=name_of)
def test_the_package_is_the_directory(path: Path) -> None:
    package = ".".join(path.parent.relative_to(ROOT / "proto").parts)
    assert f"package {package};" in path.read_text()
