"""Files of a checkpoint: private, durable, and never outside of their folder."""

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamaged

MANIFEST = "manifest.json"
# Every name that a manifest may list: nothing else is opened, so no name leads out of the folder.
_NAMES = re.compile(r"(?:data-[0-9]{5,}|index-[0-9]{5,}|plan)-[0-9a-f]{8}\.(?:bin|json)")


def is_listed_name(name: object) -> bool:
    """Whether a manifest may list a file of this name."""
    return isinstance(name, str) and _NAMES.fullmatch(name) is not None


def make_folder(path: Path) -> None:
    """A folder that only its owner can enter, and those above it where they are missing."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(mode=0o700, exist_ok=True)


def create(path: Path) -> int:
    """A new file, mode 0600, open for writing; the caller closes it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINKS, 0o600)


def sync_folder(path: Path) -> None:
    """Names created, renamed or removed in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all: written beside its name, synced, then renamed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    try:
        with os.fdopen(create(temporary), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[int]:
    """A file of a checkpoint, open for reading. Raises ``CheckpointDamaged`` where it is missing, or is a link."""
    try:
        handle = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | _NO_LINKS)
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{name} is missing") from error
    except OSError as error:
        raise CheckpointDamaged(f"{name} cannot be opened ({error.strerror})") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CheckpointDamaged(f"{name} is no regular file")
        yield handle
    finally:
        os.close(handle)


def read_exactly(handle: int, buffer: memoryview, offset: int, name: str) -> None:
    """Fill ``buffer`` from an offset of a file. Raises ``CheckpointDamaged`` where the file ends before."""
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(handle, [buffer[done:]], offset + done)
        except OSError as error:
            raise CheckpointDamaged(f"{name} cannot be read at byte {offset + done} ({error.strerror})") from error
        if count == 0:
            raise CheckpointDamaged(f"{name} ends at byte {offset + done}, {len(buffer) - done} byte(s) too early")
        done += count


def write_exactly(handle: int, buffer: memoryview, offset: int) -> None:
    """All of ``buffer`` at an offset of a file."""
    done = 0
    while done < len(buffer):
        done += os.pwrite(handle, buffer[done:], offset + done)


def reserve(handle: int, size_bytes: int) -> None:
    """Disk space for a file, so that a full disk is known before anything is written. Raises ``OSError``."""
    if size_bytes == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, size_bytes)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise


def read_small(folder: Path, name: str, size_bytes: int | None = None) -> bytes:
    """A whole small file, of the size that is expected. Raises ``CheckpointDamaged``."""
    with opened(folder, name) as handle:
        found = os.fstat(handle).st_size
        if size_bytes is not None and found != size_bytes:
            raise CheckpointDamaged(f"{name} has {found} bytes, {size_bytes} were written")
        buffer = bytearray(found)
        read_exactly(handle, memoryview(buffer), 0, name)
        return bytes(buffer)


def remove_folder(path: Path) -> None:
    """A folder and what is in it; links are removed, not followed. What cannot be removed stays."""
    shutil.rmtree(path, ignore_errors=True)


def compact(value: Any) -> str:
    """JSON in one spelling: the same value is always the same text. NaN is no JSON."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
