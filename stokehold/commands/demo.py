"""`stokehold demo`: the main job in one go, shown as it happens. Ends the service only if it started it."""

from __future__ import annotations

import subprocess
import sys
import time

import typer

from stokehold import errors
from stokehold.client import Client
from stokehold.commands import shown
from stokehold.commands.run import verdict
from stokehold.service.places import places, read_service
from stokehold.service.slot import held

PROGRAM = """\
#include <iostream>
#include <numeric>
#include <vector>
int main() {
    long n, x;
    std::cin >> n;
    std::vector<long> all;
    while (n-- && std::cin >> x) all.push_back(x);
    std::cout << std::accumulate(all.begin(), all.end(), 0L) << "\\n";
}
"""
TESTS = [
    {"name": "small", "stdin": "3\n1 2 3\n", "expected": "6\n"},
    {"name": "large", "stdin": "100000\n" + "7 " * 100_000 + "\n", "expected": "700000\n"},
]


def demo(state: shown.State = None) -> None:
    """Start a service if none runs, judge a C++ program, hold a session, and stop what was started."""
    where = places(state)
    started = not held(where.lock)
    began = time.monotonic()
    if started:
        step("starting the service (spawner and gateway)")
        _command("serve", "--detach", *(["--state", str(where.state)] if where.private else []))
    try:
        service = read_service(where)
        shown.say(f"  serving at {service.url if service else '?'}")
        with shown.failures(), Client(state=where.state if where.private else None) as client:
            judge(client)
            hold(client)
    finally:
        if started:
            step("stopping the service")
            _command("stop", *(["--state", str(where.state)] if where.private else []))
    step(f"done in {time.monotonic() - began:.1f} s. Start it for yourself: make serve")


def step(text: str) -> None:
    shown.err.print(f"── {text}", style="bold", markup=False)


def _command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "stokehold", *arguments], check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


def judge(client: Client) -> None:
    """Compile a program and judge it against two tests. Ends the demo unless it is Accepted."""
    names = {language.name for language in client.languages()}
    step("judging a C++ program: the sum of n numbers, two tests")
    if "cpp" not in names:
        shown.stop(shown.OURS, "no C++ compiler on this host: apt-get install build-essential")
    reply = client.run(language="cpp", source=PROGRAM, tests=TESTS)
    if reply.compile:
        cached = " (from the cache)" if reply.compile.cached else ""
        shown.line(f"  compile  {reply.compile.status}, {shown.milliseconds(reply.compile.wall_ns)}{cached}")
    for one in reply.runs:
        shown.line(
            f"  {one.name:8} {verdict(one)}, {shown.milliseconds(one.cpu_ns)} CPU, "
            f"{shown.milliseconds(one.wall_ns)} wall, {shown.size(one.memory_bytes)} memory"
        )
    shown.line(f"  verdict  {reply.status}")
    if not reply.ok:
        shown.stop(shown.OURS, "the program should have been Accepted")


def hold(client: Client) -> None:
    """Hold a sandbox, write with one command, read with another. Ends the demo unless the second reads what the
    first wrote."""
    step("holding a session: one command writes, another reads")
    with client.lease(ttl_s=300, metadata={"job": "demo"}) as lease:
        shown.line(f"  lease    {lease.id}")
        for command in ("echo 'written by the first command' > notes.txt", "cat notes.txt; id -un; pwd"):
            reply = lease.exec(command)
            text = reply.out.decode(errors="replace").strip().replace("\n", ", ")
            shown.line(f"  $ {command}\n    {text or '(nothing)'}   [{reply.status}, exit {reply.exit_code}]")
        if not reply.out.startswith(b"written by the first command"):
            shown.stop(shown.OURS, "the second command did not read what the first wrote")
    try:
        lease.exec("true")
    except errors.LeaseEnded as gone:
        shown.line(f"  deleted  {gone.code}")
