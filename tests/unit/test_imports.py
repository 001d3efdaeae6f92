"""Imports go one way: gateway → warmpool → runtimes → layers → guard; `stokehold` and `loadtest` import none of
them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("gateway", "warmpool", "runtimes", "layers", "guard")
APART = ("stokehold", "loadtest")
OURS = (*ORDER, *APART)


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, also inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def allowed(package: str) -> set[str]:
    return {package} if package in APART else set(ORDER[ORDER.index(package) :])


@pytest.mark.parametrize("package", OURS)
def test_imports_go_one_way(package: str) -> None:
    modules = list((ROOT / package).rglob("*.py"))
    assert modules
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in modules
        if (found := (imported(path) & set(OURS)) - allowed(package))
    }
    assert wrong == {}


def test_no_module_is_too_long() -> None:
    sources = [path for package in OURS for ending in ("*.py", "*.c", "*.h") for path in (ROOT / package).rglob(ending)]
    assert {str(path.relative_to(ROOT)) for path in sources if len(path.read_text().splitlines()) > 400} == set()


def test_every_module_says_what_it_owns() -> None:
    silent = [
        path
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
