"""What processes tell each other: short texts in the coordination service's store, and waits that all have a limit.

A wait that runs out names the ranks that did not come. Nothing here is for tensors.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .._compat import coordination_client, process_of_coordination
from ..errors import ProcessError

TIMEOUT_SECONDS = 60.0
"""How long a wait lasts where the caller says nothing else."""

_ROOT = "sbp"
_BLOCK = 64  # rounds of a gather that are forgotten together, in one call
_LOOK_SECONDS = 1.0  # how often a wait looks whether the process that it waits for has ended


class _Single:
    """The store of a run of one process: the client's interface on a dictionary."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            if key in self._texts and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self._texts[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._texts, timeout_in_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self._texts[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self._changed:
            return [(name, text) for name, text in self._texts.items() if name.startswith(key.rstrip("/") + "/")]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            for name in [name for name in self._texts if name == key or name.startswith(key.rstrip("/") + "/")]:
                del self._texts[name]


@dataclass(frozen=True, slots=True)
class Store:
    """Texts by key, seen by all processes of the run. Keys are paths (``plans/3/rank 1``)."""

    rank: int
    size: int
    client: Any
    _rounds: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, key: str, text: str, overwrite: bool = True) -> None:
        """Write ``text`` under ``key``. Raises ``ProcessError`` if the key is there and may not be overwritten."""
        try:
            self.client.key_value_set(f"{_ROOT}/{key}", text, allow_overwrite=overwrite)
        except RuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                raise ProcessError(f"the key {key!r} has been written before, and may be written once") from error
            raise self._broken(error) from error

    def get(self, key: str, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
        """The text under ``key``, waited for. Raises ``ProcessError`` if nobody writes it within the limit."""
        found = self.wait(key, timeout_seconds)
        if found is None:
            raise ProcessError(f"rank {self.rank} waited {timeout_seconds:g} s for {key!r}, and no process has set it")
        return found

    def entries(self, folder: str) -> dict[str, str]:
        """Everything under a folder of keys, by its path in the folder. Waits for nothing."""
        start = f"{_ROOT}/{folder.rstrip('/')}"
        try:
            return {name[len(start) + 1 :]: text for name, text in self.client.key_value_dir_get(start)}
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return {}
            raise self._broken(error) from error

    def delete(self, key: str) -> None:
        """Forget a key, or all keys of a folder."""
        try:
            self.client.key_value_delete(f"{_ROOT}/{key}")
        except RuntimeError as error:
            raise self._broken(error) from error

    def is_same(self, name: str, text: str, seconds: float, among: Sequence[int]) -> bool:
        """Whether all processes ``among`` come with the same text within ``seconds``; all get the same answer.

        One call to the service, where ``gather`` takes two or more. After a False all of them ``gather`` to find out
        more. A process that cannot have the others' text leaves this out: they get a False.
        """
        # The service counts the meetings of a name, and its count differs between processes after they have differed.
        turn = self._rounds[f"{name}: differed"]
        meeting = f"{_ROOT}/{name}/{turn}/{hashlib.sha256(text.encode()).hexdigest()}"
        try:
            self.client.wait_at_barrier(meeting, max(1, round(seconds * 1000)), list(among))
        except RuntimeError as error:
            if not any(word in str(error) for word in ("DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "INTERNAL")):
                raise self._broken(error) from error
            self.differs(name)
            return False
        return True

    def differs(self, name: str) -> None:
        """This process has left out an ``is_same`` of this name."""
        with self._lock:
            self._rounds[f"{name}: differed"] += 1

    def gather(
        self, name: str, text: str = "", timeout_seconds: float = TIMEOUT_SECONDS, among: Sequence[int] | None = None,
        waited_seconds: float = 0.0,
    ) -> tuple[str, ...]:  # fmt: skip
        """The texts of all processes in rank order: every process calls this with its own.

        ``name`` says what is gathered, in words: errors show it. The same name may be used again and again; all
        processes then come the same number of times. ``among``: only these processes, this one among them.
        ``waited_seconds``: what has passed of the limit.

        Raises ``ProcessError`` on every process that came, naming those that did not come within the limit; one that
        comes later gets the same error.
        """
        ranks = tuple(range(self.size)) if among is None else tuple(among)
        if ranks == (self.rank,):
            return (text,)
        with self._lock:
            turn = self._rounds[name]
            self._rounds[name] += 1
        block, place = divmod(turn, _BLOCK)
        folder = f"gather/{name}/{block}/{place}"
        if self.rank != ranks[0]:
            self.set(f"{folder}/{self.rank}", text)
            # The first may have come late itself: it gets its whole limit, and we a little more, for its answer.
            left = timeout_seconds - waited_seconds + min(5.0, timeout_seconds)
            answer = self.wait(f"{folder}/all", left, of=ranks[0])
            if answer is None:
                came = {int(rank) for rank in self.entries(folder) if rank.isdecimal()}
                missing = [rank for rank in ranks if rank not in came]
                answer = self._decide(folder, json.dumps({"missing": missing, "seconds": timeout_seconds}))
        else:
            answer = self._decide(folder, self._collect(folder, text, timeout_seconds, ranks, waited_seconds))
            if block and not place:  # All have come here, so all have read the answers before.
                self.delete(f"gather/{name}/{block - 1}")
        read = json.loads(answer)
        if "missing" in read:
            raise self._missing(name, read["seconds"], read["missing"])
        return tuple(read["texts"])

    def end(self, how: str) -> None:
        """Tell the others that this process ends, and how (``has ended``, ``failed with ...``): they stop waiting."""
        self.set(f"ended/{self.rank}", how)

    def ended(self) -> dict[int, str]:
        """The processes that have ended by now, and how."""
        return {int(rank): how for rank, how in self.entries("ended").items()}

    def barrier(self, name: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until all processes are here. Raises ``ProcessError`` naming those that are not within the limit."""
        self.gather(name, "", timeout_seconds)

    def broadcast(self, name: str, text: str | None, source: int = 0, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
        """The text of process ``source`` on every process; the others pass None.

        Raises ``ProcessError`` naming ``source`` if it does not come within the limit. ``source`` waits for nobody.
        """
        with self._lock:
            turn = self._rounds[f"{name} from {source}"]
            self._rounds[f"{name} from {source}"] += 1
        key = f"broadcast/{name}/{source}/{turn}"
        if self.rank == source:
            if text is None:
                raise ProcessError(f"{name}: rank {source} is the source, and passed no text")
            self.set(key, text)
            return text
        found = self.wait(key, timeout_seconds, of=source)
        if found is None:
            raise self._missing(name, timeout_seconds, [source])
        return found

    def _decide(self, folder: str, answer: str) -> str:
        """The one answer for all: this one, unless another process has given one before.

        So no process goes on where another has given up, though the last one came at that very moment.
        """
        try:
            self.set(f"{folder}/all", answer, overwrite=False)
        except ProcessError:
            earlier = self.entries(folder).get("all")
            if earlier is None:
                raise
            return earlier
        return answer

    def _collect(self, folder: str, text: str, timeout_seconds: float, ranks: Sequence[int], waited: float) -> str:
        """The answer of the first of ``ranks``: all texts, or who is missing."""
        texts, end = [text], time.monotonic() + timeout_seconds - waited
        for rank in ranks[1:]:
            found = self.wait(f"{folder}/{rank}", max(0.0, end - time.monotonic()), of=rank)
            if found is None:
                came = self.entries(folder)
                missing = [other for other in ranks[1:] if str(other) not in came]
                if missing:
                    return json.dumps({"missing": missing, "seconds": timeout_seconds})
                found = came[str(rank)]
            texts.append(found)
        return json.dumps({"texts": texts})

    def wait(self, key: str, timeout_seconds: float, of: int | None = None) -> str | None:
        """The text under ``key``, None when the limit is over, or once process ``of``, which is to write it, ended."""
        end = time.monotonic() + timeout_seconds
        while True:
            left = end - time.monotonic()
            part = left if of is None else min(left, _LOOK_SECONDS)
            try:
                # At least 1 ms: 0 would mean no limit.
                return self.client.blocking_key_value_get(f"{_ROOT}/{key}", max(1, round(part * 1000)))
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise self._broken(error) from error
            if left <= _LOOK_SECONDS:
                return None
            if of in self.ended():  # It may have written its text just before.
                return self.entries(key.rpartition("/")[0]).get(key.rpartition("/")[2])

    def _missing(self, name: str, seconds: float, missing: list[int]) -> ProcessError:
        ranks = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} have"
        ended = {rank: how for rank, how in self.ended().items() if rank in missing}
        how = "".join(f". Rank {rank} {how}" for rank, how in ended.items())
        return ProcessError(
            f"{name}: {ranks} not come {'and will not' if ended else f'within {seconds:g} s'} (of {self.size} "
            f"processes; this is rank {self.rank}){how}. All processes must call it, in the same order"
            + ("" if ended else ": look at what the missing ones did last, or give a longer limit")
        )

    def _broken(self, error: Exception) -> ProcessError:
        first = str(error).splitlines()[0]
        return ProcessError(
            f"rank {self.rank} cannot use the processes' store any more, rank 0 may have ended: {first}"
        )


_stores: list[Store] = []
_stores_lock = threading.Lock()


def store() -> Store:
    """The store of the run that this process is in. A process on its own has one too."""
    client = coordination_client()
    with _stores_lock:
        if _stores and (_stores[0].client is client or (client is None and isinstance(_stores[0].client, _Single))):
            return _stores[0]
        rank, size = (0, 1) if client is None else process_of_coordination()
        _stores[:] = [Store(rank, size, _Single() if client is None else client)]
        return _stores[0]
