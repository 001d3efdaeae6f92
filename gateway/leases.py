"""From a lease request to what `warmpool` is asked for. What this service does not have is refused here, with a hint."""

from __future__ import annotations

from gateway.calls import refuse_layers
from gateway.errors import BadRequest, Unsupported
from gateway.requests import LeaseAsk, ResourcesAsk
from gateway.schema import escape, within
from gateway.settings import Maximum
from runtimes.backend import Spec
from warmpool.leases import LeaseAsk as Ask


def ask_of(ask: LeaseAsk, maximum: Maximum) -> Ask:
    """Raises BadRequest with the field, Unsupported."""
    _refuse_unbuilt(ask)
    within(ask.ttl_s, maximum.ttl_s, "/ttl_s")
    within(ask.idle_s, maximum.ttl_s, "/idle_s")
    within(ask.wait_s, maximum.wait_s, "/wait_s")
    within(ask.count, maximum.count, "/count")
    if ask.cwd is not None and not ask.cwd.startswith("/"):
        raise BadRequest("cwd is an absolute path", field="/cwd")
    for name, value in (ask.env or {}).items():
        if "\0" in (value or ""):
            raise BadRequest("a variable cannot hold a NUL", field=f"/env/{escape(name)}")
    env = {name: value for name, value in (ask.env or {}).items() if value is not None}
    return Ask(
        spec=_spec(ask, maximum),
        ttl_s=3600.0 if ask.ttl_s is None else ask.ttl_s,
        idle_s=ask.idle_s,
        user=ask.user,
        env=env,
        cwd=ask.cwd,
        metadata=ask.metadata or {},
    )


def _refuse_unbuilt(ask: LeaseAsk) -> None:
    if ask.kind in ("microvm", "vm"):
        raise Unsupported(f"kind {ask.kind} is not part of this service: use container", field="/kind")
    if ask.backend not in (None, "native", "fake"):
        raise BadRequest(f"there is no backend {ask.backend[:40]}", field="/backend")
    refuse_layers(ask.layers)
    if ask.from_ is not None and ask.from_.snapshot is not None:
        raise Unsupported("snapshots are not part of this service", field="/from/snapshot")
    if ask.network is not None and (ask.network.mode not in (None, "none") or ask.network.allow):
        field = "/network/allow" if ask.network.mode in (None, "none") else "/network/mode"
        raise Unsupported("networks other than mode none are not part of this service", field=field)
    if ask.on_idle == "pause":
        raise Unsupported("pausing is not part of this service: on_idle is delete", field="/on_idle")
    if ask.resources is not None and ask.resources.disk is not None and ask.resources.disk.on == "disk":
        raise Unsupported("files on the node's disk are not part of this service: disk.on is memory", field="/resources/disk/on")


def _spec(ask: LeaseAsk, maximum: Maximum) -> Spec:
    resources = ask.resources or ResourcesAsk()
    disk_mb = 256.0 if resources.disk is None or resources.disk.mb is None else resources.disk.mb
    memory_mb = 512.0 if resources.memory_mb is None else resources.memory_mb
    cpu = 1.0 if resources.cpu is None else resources.cpu
    processes = 256 if resources.processes is None else resources.processes
    for value, most, field in (
        (disk_mb, maximum.disk_mb, "/resources/disk/mb"),
        (memory_mb, maximum.memory_mb, "/resources/memory_mb"),
        (cpu, maximum.cpus, "/resources/cpu"),
        (processes, maximum.processes, "/resources/processes"),
    ):
        within(value, most, field)
    return Spec(
        kind=ask.kind or "container",
        role="lease",
        base="host",
        memory_bytes=round(memory_mb * (1 << 20)),
        disk_bytes=round(disk_mb * (1 << 20)),
        processes=processes,
        cpu_milli=max(1, round(cpu * 1000)),
    )
