"""What kind of file system a path is on: not all of them can hold a write-ahead log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torchglass.errors import warn
from torchglass.store.schema import Journal

MOUNTS = Path("/proc/self/mounts")

# fmt: off
_OVER_A_NETWORK = frozenset((
    "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gcsfuse", "glusterfs", "gpfs", "juicefs",
    "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "rclone", "s3fs", "smb3",
    "smbfs", "sshfs", "vboxsf", "wekafs",
))
# fmt: on


def file_system_of(path: Path) -> str:
    """The name of the file system that a path is on, "" where the machine does not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    return deepest(path.absolute(), lines)


def deepest(path: Path, mounts: Iterable[str]) -> str:
    """The file system of the mount that holds a path, from lines as in /proc/self/mounts."""
    best, name = -1, ""
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        folder = Path(_unescaped(place))
        # Of two mounts at one place the later one covers the other.
        if len(folder.parts) >= best and path.is_relative_to(folder):
            best, name = len(folder.parts), kind
    return name


def is_over_a_network(file_system: str) -> bool:
    """Whether other machines may have the same files open, which a write-ahead log cannot bear."""
    return file_system.removeprefix("fuse.") in _OVER_A_NETWORK


def journal_for(path: Path, file_system: Callable[[Path], str]) -> Journal:
    """The journal that a run file at this path can have; says so if it is not the usual one."""
    kind = file_system(path)
    if not is_over_a_network(kind):
        return "WAL"
    warn(
        f"{path} is on {kind}, which other machines share: it is written without a write-ahead "
        "log, so whoever reads it meanwhile may have to wait for a moment"
    )
    return "TRUNCATE"


def _unescaped(place: str) -> str:
    """A path as it is, where spaces and such stand as octal numbers."""
    return (
        place.encode("utf-8", "surrogateescape")
        .decode("unicode_escape")
        .encode("latin-1")
        .decode("utf-8", "surrogateescape")
    )
