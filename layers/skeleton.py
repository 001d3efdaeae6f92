"""What base layer `host` contains beside /usr, as data: an allow-list of directories, links, generated and copied
files.

Never `/` with holes: what is not named here is not in a sandbox. Owns no I/O beyond reading the host's /etc to plan
copies; `layers.host` acts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from layers import accounts

DIRECTORIES: dict[str, int] = {
    "box": 0o755, "boot": 0o755, "dev": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o555,
    "root": 0o700, "run": 0o755, "run/lock": 0o1777, "srv": 0o755, "sys": 0o555, "tmp": 0o1777, "usr": 0o755,
    "workspace": 0o755, "etc": 0o755, "etc/opt": 0o755, "etc/apt": 0o755, "etc/apt/apt.conf.d": 0o755,
    "etc/apt/preferences.d": 0o755, "etc/apt/sources.list.d": 0o755, "etc/apt/trusted.gpg.d": 0o755,
    "etc/apt/keyrings": 0o755, "etc/profile.d": 0o755, "etc/default": 0o755, "etc/ssl": 0o755, "etc/ssl/private": 0o700,
    "var": 0o755, "var/backups": 0o755, "var/cache": 0o755, "var/cache/apt": 0o755, "var/cache/apt/archives": 0o755,
    "var/cache/apt/archives/partial": 0o700, "var/cache/debconf": 0o755, "var/cache/ldconfig": 0o700,
    "var/lib": 0o755, "var/lib/apt": 0o755, "var/lib/apt/lists": 0o755, "var/lib/apt/lists/partial": 0o700,
    "var/lib/apt/mirrors": 0o755, "var/lib/apt/mirrors/partial": 0o755, "var/lib/apt/periodic": 0o755,
    "var/lib/misc": 0o755, "var/lib/pam": 0o755, "var/lib/private": 0o700, "var/lib/ucf": 0o755, "var/local": 0o755,
    "var/log": 0o755, "var/log/apt": 0o755, "var/mail": 0o755, "var/opt": 0o755, "var/spool": 0o755, "var/tmp": 0o1777,
}  # fmt: skip
"""Path below the layer's root → mode. All belong to root."""

LINKS: dict[str, str] = {
    "var/run": "/run",
    "var/lock": "/run/lock",
    "var/spool/mail": "../mail",
    "etc/mtab": "/proc/mounts",
}

MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Copied as links when they are links on the host (merged /usr); a host where they are directories is refused."""

COPIES: tuple[str, ...] = (
    "adduser.conf", "alternatives", "apt/preferences.d", "apt/trusted.gpg.d", "apt/keyrings",
    "bindresvport.blacklist", "ca-certificates", "ca-certificates.conf", "dconf", "debconf.conf", "debian_version",
    "deluser.conf", "dpkg", "ethertypes", "fonts", "gai.conf", "groff", "gss", "host.conf", "inputrc", "issue",
    "issue.net", "kernel", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libaudit.conf", "locale.alias",
    "locale.conf", "locale.gen", "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "manpath.config",
    "mime.types", "mke2fs.conf", "netconfig", "networks", "os-release", "pam.conf", "pam.d", "perl", "protocols",
    "rmt", "rpc", "selinux", "services", "sgml", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
    "ucf.conf", "vim", "xattr.conf", "xml",
)  # fmt: skip
"""Below /etc, whole trees included."""

COPY_PATTERNS: tuple[str, ...] = ("java-*-openjdk", "java", "python3*", "lua*", "ruby*", "php")
"""Below /etc, by pattern: the configuration of language run times."""

PACKAGED: tuple[str, ...] = (
    "apt/apt.conf.d",
    "bash.bashrc",
    "default",
    "maven",
    "profile",
    "profile.d",
    "security",
    "skel",
    "xdg",
)
"""Below /etc: where administrators put proxies and tokens. Only files of Debian packages are copied, if unchanged."""

VAR_COPIES: tuple[str, ...] = (
    "var/lib/dpkg", "var/lib/pam", "var/lib/ucf", "var/cache/debconf/templates.dat", "var/lib/python",
    "var/lib/shells.state", "var/lib/xml-core", "var/lib/sgml-base",
)  # fmt: skip
"""So that dpkg and apt know what /usr holds."""

NEVER = re.compile(
    r"(^|/)(\.pwd\.lock|lock|lock-frontend|.*-old|.*\.dpkg-.*|.*~|ssh|private|machine-id|auth\.conf.*|sudoers.*"
    r"|.*\.password|.*\.key|.*credentials.*|.*secret.*|pip\.conf|npmrc|gitconfig|wgetrc|netrc)$"
)
_LOGIN_IN_URL = re.compile(rb"://[^/\s:@]+:[^/\s@]+@")


class Item(msgspec.Struct, frozen=True):
    """One file, directory or link of the host to copy. `path` is relative to the root; `mode` has no set-id bits."""

    path: str
    kind: int
    """S_IFREG, S_IFDIR or S_IFLNK."""
    mode: int
    size: int
    mtime_ns: int


def generated() -> dict[str, tuple[str, int]]:
    """Files that are written rather than copied: path → (text, mode)."""
    passwd = accounts.passwd(_text("/etc/passwd"))
    group = accounts.group(_text("/etc/group"))
    return {
        "etc/passwd": (passwd, 0o644),
        "etc/group": (group, 0o644),
        "etc/shadow": (accounts.shadow(passwd), 0o640),
        "etc/gshadow": (accounts.gshadow(group), 0o640),
        "etc/subuid": ("", 0o644),
        "etc/subgid": ("", 0o644),
        "etc/hostname": ("sandbox\n", 0o644),
        "etc/hosts": ("127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644),
        "etc/resolv.conf": ("", 0o644),
        "etc/nsswitch.conf": ("".join(f"{k}:\tfiles\n" for k in ("passwd", "group", "shadow", "gshadow", "networks",
                              "protocols", "services", "ethers", "rpc")) + "hosts:\tfiles dns\n", 0o644),
        "etc/environment": ("", 0o644),
        "etc/fstab": ("", 0o644),
        "etc/motd": ("", 0o644),
        "etc/apt/sources.list": ("", 0o644),
        "var/log/dpkg.log": ("", 0o644),
        "var/log/lastlog": ("", 0o644),
    }  # fmt: skip


def copies() -> Iterator[Item]:
    """Everything of the host to copy, parents before children. Unreadable to others, devices, sockets: left out."""
    etc = Path("/etc")
    names = [f"etc/{name}" for name in COPIES]
    names += [f"etc/{p.name}" for pattern in COPY_PATTERNS for p in sorted(etc.glob(pattern))]
    for name in names:
        yield from _walk(name)
    packaged = _conffiles()
    for name in PACKAGED:
        for item in _walk(f"etc/{name}"):
            if item.kind != stat.S_IFREG or packaged.get("/" + item.path) == _md5("/" + item.path):
                yield item
    for name in VAR_COPIES:
        yield from _walk(name)


def usr_merged() -> dict[str, str]:
    """The links that make /bin and its like a part of /usr. Raises RuntimeError where they are directories."""
    links = {}
    for name in MERGED_USR:
        path = Path("/") / name
        if path.is_symlink():
            links[name] = str(path.readlink())
        elif path.is_dir() and any(path.iterdir()):
            raise RuntimeError(
                f"{path} is not a link into /usr: this host is not usr-merged (apt-get install usrmerge)"
            )
    return links


def carries_login(data: bytes) -> bool:
    """Whether a file holds a URL with a user and a password in it."""
    return _LOGIN_IN_URL.search(data) is not None


def _walk(name: str) -> Iterator[Item]:
    if NEVER.search(name):
        return
    path = "/" + name
    try:
        info = os.lstat(path)
    except OSError:
        return
    kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode) & 0o1777
    if kind == stat.S_IFLNK or (kind == stat.S_IFREG and mode & 0o004):
        yield Item(name, kind, mode, info.st_size, info.st_mtime_ns)
    elif kind == stat.S_IFDIR and mode & 0o005 == 0o005:
        yield Item(name, kind, mode, 0, info.st_mtime_ns)
        for child in sorted(Path(path).iterdir()):
            yield from _walk(f"{name}/{child.name}")


def _conffiles() -> dict[str, str]:
    """Configuration file → MD5 of the version that its Debian package brought (dpkg's own record)."""
    found = {}
    for line in _text("/var/lib/dpkg/status").splitlines():
        if line.startswith(" /etc/"):
            path, digest = line.split()[:2]
            found[path] = digest
    return found


def _md5(path: str) -> str:
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
