from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

from warmpool.journal import Journal, Row


def rows(path: Path, ended_max: int = 100) -> list[Row]:
    journal = Journal(path)
    try:
        return journal.open(ended_max=ended_max)
    finally:
        journal.close()


def test_what_was_put_is_read_at_the_next_start(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.open(ended_max=10) == []
    live, over = Row("aaaaaaaa", "t", b"1"), Row("bbbbbbbb", "t", b"2", b"e", 5)
    journal.put(Row("aaaaaaaa", "t", b"0"))
    journal.put(live)
    journal.put(over)
    journal.put(Row("cccccccc", "t", b"3"))
    journal.drop("cccccccc")
    journal.close()
    assert rows(tmp_path / "j") == [live, over]


def test_find_reads_one_row_of_its_tenant(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.open(ended_max=10)
    row = Row("aaaaaaaa", "t", b"1", b"e", 5)
    journal.put(row)
    journal.flush()
    assert journal.find("t", "aaaaaaaa") == row
    assert journal.find("other", "aaaaaaaa") is None
    journal.close()


def test_old_ones_are_purged_and_the_number_is_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", rows_max=3)
    journal.open(ended_max=10)
    journal.put(Row("living00", "t", b""))
    for at in range(10):
        journal.put(Row(f"ended{at:03}", "t", b"", b"", at))
    journal.flush()
    journal.purge(5)
    journal.close()
    assert [row.id for row in rows(tmp_path / "j")] == ["living00", "ended008", "ended009"]


def test_only_the_last_that_ended_are_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.open(ended_max=10)
    for at in range(5):
        journal.put(Row(f"ended{at:03}", "t", b"", b"", at))
    journal.close()
    assert [row.id for row in rows(tmp_path / "j", ended_max=2)] == ["ended003", "ended004"]


def test_what_waits_is_bounded_and_losses_are_counted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", pending_max=2)
    for n in range(5):
        journal.put(Row(f"lease{n:03}", "t", b""))
    assert journal.dropped == 3
    journal.open(ended_max=1)
    journal.close()
    assert [row.id for row in rows(tmp_path / "j")] == ["lease003", "lease004"]


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"no database at all" * 1000)
    assert rows(tmp_path / "j") == []
    assert (tmp_path / "j.damaged").exists()


def test_a_write_that_fails_for_a_while_is_made_good(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", busy_s=0.01, retry_s=0.01)
    journal.open(ended_max=1)
    other = sqlite3.connect(tmp_path / "j", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    journal.put(Row("aaaaaaaa", "t", b""))
    while not journal.failures:
        os.sched_yield()
    other.execute("COMMIT")
    other.close()
    journal.flush()
    assert journal.find("t", "aaaaaaaa") is not None
    journal.close()


def test_a_killed_process_leaves_a_file_that_opens(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", f"""
import os
from pathlib import Path
from warmpool.journal import Journal, Row
journal = Journal(Path({str(tmp_path / "j")!r}))
journal.open(ended_max=1)
for n in range(1000):
    journal.put(Row(f"lease{{n:05}}", "t", b"x" * 500))
journal.flush()
os.write({writer}, b"w")
while True:
    journal.put(Row("lease00000", "t", b"y"))
"""], dict(os.environ))
    os.close(writer)
    assert os.read(reader, 1) == b"w"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    assert len(rows(tmp_path / "j")) == 1000
