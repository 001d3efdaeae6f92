"""Limits: API.md's defaults and units, exact to the byte."""

from __future__ import annotations

from runtimes.limits import COMPILE, LimitsAsk, resolve

MB = 1 << 20


def test_defaults_of_a_run() -> None:
    limits = resolve(LimitsAsk())
    assert (limits.cpu_ns, limits.wall_ns) == (2_000_000_000, 6_000_000_000)
    assert (limits.memory_bytes, limits.stack_bytes) == (256 * MB, None)
    assert (limits.output_bytes, limits.file_bytes, limits.disk_bytes) == (1 << 20, 64 * MB, 256 * MB)
    assert (limits.processes, limits.cpu_milli) == (128, 1000)


def test_defaults_of_a_compile() -> None:
    limits = resolve(LimitsAsk(), COMPILE)
    assert (limits.cpu_ns, limits.wall_ns) == (10_000_000_000, 30_000_000_000)
    assert (limits.memory_bytes, limits.file_bytes) == (1024 * MB, 256 * MB)


def test_wall_follows_cpu_unless_named() -> None:
    assert resolve(LimitsAsk(cpu_ms=4000)).wall_ns == 12_000_000_000
    assert resolve(LimitsAsk(cpu_ms=500)).wall_ns == 6_000_000_000
    assert resolve(LimitsAsk(cpu_ms=4000, wall_ms=1500)).wall_ns == 1_500_000_000
    assert resolve(LimitsAsk(cpu_ms=1000), COMPILE).wall_ns == 30_000_000_000
    assert resolve(LimitsAsk(cpu_ms=20_000), COMPILE).wall_ns == 60_000_000_000


def test_fractions_are_exact() -> None:
    limits = resolve(LimitsAsk(cpu_ms=0.5, output_kb=1.001, memory_mb=0.5, cpus=0.25, stack_mb=1.5))
    assert (limits.cpu_ns, limits.output_bytes, limits.memory_bytes) == (500_000, 1025, MB // 2)
    assert (limits.cpu_milli, limits.stack_bytes) == (250, MB * 3 // 2)


def test_none_at_all_is_a_limit_too() -> None:
    limits = resolve(LimitsAsk(output_kb=0, file_mb=0))
    assert (limits.output_bytes, limits.file_bytes) == (0, 0)


def test_over_lays_what_is_named() -> None:
    assert LimitsAsk(cpu_ms=1).over(LimitsAsk(cpu_ms=2, wall_ms=3)) == LimitsAsk(cpu_ms=1, wall_ms=3)


def test_a_command_gets_what_the_kernel_bounds() -> None:
    command = resolve(LimitsAsk()).command()
    assert (command.cpu_ns, command.stack_bytes, command.processes) == (2_000_000_000, None, 128)
