"""Base layer `host`, built for real: what is in it, what never is; a second build is quick and changes nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from layers import gocache, host, skeleton, toolchains

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the layer keeps owners: root only")


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built without Go's library, which takes long and is the same for all."""
    directory = tmp_path_factory.mktemp("layers") / "host"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gocache, "prepare", lambda *arguments: False)
        assert host.build(directory)
        yield directory


def everything(layer: Path) -> list[Path]:
    root = layer / "root"
    return [root, *(Path(folder) / name for folder, dirs, files in os.walk(root) for name in dirs + files)]


def test_a_second_build_does_nothing_and_is_quick(layer: Path) -> None:
    before = (layer / "root").stat().st_ino
    began = time.monotonic()
    assert not host.build(layer)
    assert time.monotonic() - began < 5 and (layer / "root").stat().st_ino == before


def test_damage_is_repaired(layer: Path) -> None:
    (layer / "languages.json").unlink()
    assert host.build(layer)
    assert (layer / "languages.json").is_file()
    assert [path.name for path in layer.parent.iterdir() if not path.name.endswith(".lock")] == ["host"]


def test_all_belongs_to_root_and_nothing_is_set_id(layer: Path) -> None:
    for path in everything(layer):
        info = path.lstat()
        assert info.st_uid == 0 or path.name == "box", path
        assert not (stat.S_ISREG(info.st_mode) and info.st_mode & 0o6000), path
        assert stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
        if not stat.S_ISLNK(info.st_mode) and info.st_mode & 0o022:
            assert info.st_mode & stat.S_ISVTX, f"{path} can be written by others"


def test_no_secret_is_in_it(layer: Path) -> None:
    names = {str(path.relative_to(layer / "root")) for path in everything(layer)}
    assert not {n for n in names if n.startswith(("etc/ssh", "etc/ssl/private/", "etc/sudoers", "etc/apt/auth"))}
    assert not names & {"etc/machine-id", "etc/shadow-", "etc/passwd-", "etc/pip.conf", "etc/npmrc", "var/lib/dbus"}
    for path in everything(layer):
        if path.is_file() and not path.is_symlink() and "etc" in path.relative_to(layer / "root").parts[:1]:
            assert not skeleton.carries_login(path.read_bytes()), path


def test_shadow_holds_no_hash_and_is_not_for_all(layer: Path) -> None:
    for name in ("shadow", "gshadow"):
        path = layer / "root/etc" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert {line.split(":")[1] for line in path.read_text().splitlines()} == {"*"}


def test_what_programs_expect_is_there(layer: Path) -> None:
    root = layer / "root"
    for name in ("usr", "proc", "sys", "dev", "tmp", "box", "workspace", "run", "root", "home", "var/lib/dpkg/info"):
        assert (root / name).is_dir() and not (root / name).is_symlink(), name
    for name in ("etc/ld.so.cache", "etc/nsswitch.conf", "etc/hosts", "var/lib/dpkg/status", "etc/apt/sources.list"):
        assert (root / name).is_file(), name
    assert (root / "bin").readlink() == Path("usr/bin")
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert not any((root / "usr").iterdir())
    assert "user:x:1000:1000::/box:" in (root / "etc/passwd").read_text()


def test_dpkg_knows_what_is_installed(layer: Path) -> None:
    ask = ["dpkg", f"--admindir={layer}/root/var/lib/dpkg", "-l", "bash"]
    assert b"\nii  bash" in subprocess.run(ask, capture_output=True, check=True).stdout


def test_binds_are_absolute_and_their_targets_exist(layer: Path) -> None:
    lines = (layer / "binds").read_text().splitlines()
    assert lines[0] == "/usr\t/usr"
    for line in lines:
        target, _, source = line.partition("\t")
        assert (layer / "root" / target.lstrip("/")).is_dir() and Path(source).is_dir()


def test_every_tool_is_where_a_sandbox_will_find_it(layer: Path) -> None:
    listing = json.loads((layer / "languages.json").read_text())
    binds = dict(line.split("\t") for line in (layer / "binds").read_text().splitlines())
    assert {"c", "cpp", "python", "bash"} <= set(listing["languages"])
    for language in listing["languages"].values():
        for path in (language["path"], *(p for role, p in language["more"].items() if role != "cache")):
            target = next(t for t in sorted(binds, key=len, reverse=True) if path.startswith(t) or path.startswith("/bin/"))
            assert Path(binds[target] + path.removeprefix(target)).exists(), path


def test_the_gateway_can_read_what_it_needs(layer: Path) -> None:
    for name in (".", "languages.json", "root"):
        assert (layer / name).stat().st_mode & 0o004


def test_files_modified_by_an_administrator_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "_conffiles", dict)
    packaged = tuple(f"etc/{name}/" for name in skeleton.PACKAGED)
    assert not [item for item in skeleton.copies() if item.path.startswith(packaged) and item.kind == stat.S_IFREG]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (b"proxy http://u:p@host:80/", True),
        (b"http://host:80/path@x", False),
        (b"https://user@host/", False),
        (b"deb http://mirror.example/debian x", False),
    ],
)
def test_urls_with_a_login(text: bytes, secret: bool) -> None:
    assert skeleton.carries_login(text) is secret


@pytest.mark.parametrize("name", ["etc/ssh", "etc/ssl/private", "etc/apt/auth.conf.d", "etc/machine-id", "etc/x/a.key", "etc/shadow-old"])
def test_names_that_never_go_in(name: str) -> None:
    assert skeleton.NEVER.search(name)


def test_tools_outside_usr_are_bound() -> None:
    search = toolchains._Search()
    assert search.inside("/usr/bin/x", "/usr", "/opt/x") == "/usr/bin/x" and search.binds == {}
    assert search.inside("/home/a/sdk/bin/x", "/home/a/sdk", "/opt/x") == "/opt/x/bin/x"
    assert search.binds == {"/opt/x": "/home/a/sdk"}


def test_a_tool_that_does_not_run_is_no_tool(tmp_path: Path) -> None:
    assert toolchains.ask("/no/such/tool") is None
    assert toolchains.ask("/bin/false") is None
    assert toolchains.ask("/bin/echo", "1.0") == "1.0"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert host.main([]) == 2 and "usage" in capsys.readouterr().err
