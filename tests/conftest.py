"""What a run tested, by kind: the counts that a build server shows."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest

OUTCOMES = ("passed", "failed", "error", "skipped")


def _kind(nodeid: str) -> str:
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    kind = parts[1] if len(parts) > 2 else "other"
    if kind != "contract":
        return kind
    return f"contract suite on {'native' if 'native' in nodeid.partition('[')[2] else 'fake'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, Counter[str]] = {}
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            if getattr(report, "nodeid", ""):
                counts.setdefault(_kind(report.nodeid), Counter())[outcome] += 1
    if counts:
        terminalreporter.section("by kind")
        for kind, found in sorted(counts.items()):
            terminalreporter.write_line(f"{kind}: " + ", ".join(f"{found[name]} {name}" for name in OUTCOMES if found[name]))
