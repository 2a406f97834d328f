"""What workers print: relayed line by line or written to files, the end kept to be shown, secrets taken out."""

import os
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ...run_dir import make_folder, open_file

TAIL_BYTES = 8192
TAIL_LINES = 30
_LONGEST_LINE = 1 << 16

_SECRET = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL|PRIVATE|AUTH", re.IGNORECASE)
# A value shorter than this, or one of these words, is found by chance in every log.
_SHORTEST_SECRET = 6
_WORDS = {"false", "default", "enabled", "disabled", "optional", "required", "localhost"}


def secrets_of(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values of variables whose names speak of secrets, longest first."""
    found = {
        value
        for name, value in environment.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET and value.lower() not in _WORDS
    }
    return tuple(sorted((os.fsencode(value) for value in found), key=len, reverse=True))


def redact(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """``data`` with ``***`` for each secret."""
    for secret in secrets:
        data = data.replace(secret, b"***")
    return data


def last_lines(data: bytes) -> str:
    """The last lines of an output, at most ``TAIL_LINES``."""
    return "\n".join(data.decode("utf-8", "replace").rstrip().splitlines()[-TAIL_LINES:])


class Files:
    """A worker's output in ``LOGDIR/local_rank_K/stdout`` and ``stderr``; what it writes passes nobody else."""

    def __init__(self, logdir: Path, local_rank: int, generation: int) -> None:
        folder = make_folder(logdir / f"local_rank_{local_rank}")
        self.paths = (folder / "stdout", folder / "stderr")
        # A new run overwrites, as in OneFlow. A restart adds: how the last generation ended must stay readable.
        fresh = os.O_TRUNC if generation == 0 else 0
        self.fds = tuple(open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | fresh) for path in self.paths)
        if generation:
            for fd in self.fds:
                try:
                    os.write(fd, f"--- generation {generation}\n".encode())
                except OSError:  # A full disk: the processes will say so themselves.
                    pass
        self._starts = tuple(os.fstat(fd).st_size for fd in self.fds)

    def tail(self) -> bytes:
        """The end of what this generation wrote: of stderr, or of stdout where stderr has nothing."""
        for fd, start in ((self.fds[1], self._starts[1]), (self.fds[0], self._starts[0])):
            size = os.fstat(fd).st_size
            if size > start:
                return os.pread(fd, TAIL_BYTES, max(start, size - TAIL_BYTES))
        return b""

    def close(self) -> None:
        """Close our descriptors; the worker has its own."""
        for fd in self.fds:
            os.close(fd)


class Relay:
    """One output of a worker, through a pipe: whole lines go to ours, so that those of two ranks do not mix."""

    def __init__(self, out: IO[bytes], prefix: bytes, secrets: tuple[bytes, ...], tail: "Tail") -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._out, self._prefix, self._secrets, self._tail = out, prefix, secrets, tail
        self._rest = b""

    def pump(self) -> bool:
        """Pass on what has come; False when the other end is closed."""
        for _ in range(16):  # At most 1 MB, then the other workers' turn.
            try:
                part = os.read(self.reading, 1 << 16)
            except BlockingIOError:
                return True
            if not part:
                self.flush()
                return False
            whole, newline, rest = (self._rest + part).rpartition(b"\n")
            if not newline and len(rest) > _LONGEST_LINE:
                # What is kept back may be the beginning of a secret; and there is always an end left to flush.
                rest = redact(rest, self._secrets)
                kept = max(map(len, self._secrets), default=1)
                whole, rest = rest[:-kept], rest[-kept:]
            self._rest = rest
            if whole or newline:
                self._write(whole + newline)
        return True

    def flush(self) -> None:
        """Pass on a last line without an end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._write(rest + b"\n")

    def _write(self, lines: bytes) -> None:
        lines = redact(lines, self._secrets)
        self._tail.add(lines)
        if self._prefix:
            lines = b"".join(self._prefix + line for line in lines.splitlines(keepends=True))
        try:
            self._out.write(lines)
            self._out.flush()
        except (OSError, ValueError):  # Nobody reads any more: the run goes on.
            pass

    def close_writing(self) -> None:
        """Close our copy of the end that the worker writes to."""
        os.close(self.writing)

    def close(self) -> None:
        """Close the reading end."""
        os.close(self.reading)


class Tail:
    """The end of a worker's output, stdout and stderr as they came."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Keep the end of ``data`` too."""
        self._parts.append(data[-TAIL_BYTES:])
        self._size += len(self._parts[-1])
        while self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def text(self) -> bytes:
        """The last ``TAIL_BYTES``."""
        return b"".join(self._parts)[-TAIL_BYTES:]
