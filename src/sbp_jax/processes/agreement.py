"""One text for all: the first process of a group makes it, the others get it, all ask for the same thing.

Every process of the group asks in its turn (its requests are numbered) with facts that say what it asks for. The first
one compares them before it makes anything. Where they differ, every process gets the same error, with the first
difference and the ranks on each side. Texts in, texts out: what they mean is the caller's.
"""

import base64
import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..differences import both
from ..errors import ProcessError
from .store import Store, store

ARRIVAL_SECONDS = 300.0
"""How long the processes of a group wait until all have asked. ``SBP_AGREEMENT_SECONDS`` says otherwise."""

MAKING_SECONDS = 3600.0
"""How long the others wait for the first one to make the text, once all have asked."""

_GRACE_SECONDS = 10.0
_PIECE = 1 << 20  # Characters of one entry: messages of the store may be limited.
_FAILED, _LEFT = "failed: ", "left: "
_SAME, _DIFFER = "same", "differ"

_turns: dict[tuple[Any, tuple[int, ...]], int] = {}
_lock = threading.Lock()


class Request:
    """One turn of this process in a group. The numbers of requests are those of the order in which they are made."""

    def __init__(self, members: Sequence[int], shared: Store) -> None:
        self.members, self.store = tuple(sorted(members)), shared
        with _lock:
            key = shared.client, self.members
            self.number = _turns[key] = _turns.get(key, 0) + 1
        self._group = f"agreement/{'-'.join(map(str, _ranges(self.members)))}"
        self._folder = f"{self._group}/{self.number}"

    @property
    def is_first(self) -> bool:
        """Whether this process makes the text."""
        return self.store.rank == self.members[0]

    def fail(self, text: str) -> None:
        """This process cannot ask: the others get ``text`` as an error instead of waiting for it."""
        failure = f"{_FAILED}rank {self.store.rank}: {text}"
        self._set("met" if self.is_first else f"asked/{self.store.rank}", failure)

    def agree(
        self,
        what: str,
        facts: Mapping[str, str],
        make: Callable[[], str],
        details: Callable[[], Mapping[str, str]] = dict,
    ) -> str:
        """The text that ``make`` gives on the first process, on all of them.

        Args:
            what: what is asked for, for errors ("the plan of step").
            facts: what must be the same in all processes, most telling first.
            make: called on the first process only, when all have asked for the same.
            details: longer texts for some of the facts, to find the first difference in; called where there is one.

        Raises:
            ProcessError: on every process that has asked, where facts differ, one could not ask, or some do not come
                within the limit, by their ranks.
        """
        digest = hashlib.sha256(json.dumps(dict(facts)).encode()).hexdigest()
        seconds = _arrival_seconds()
        met = self._meet(what, digest, seconds) if self.is_first else self._wait_met(what, digest, seconds)
        if met == _DIFFER:
            raise ProcessError(self._difference(what, {**facts, **details()}, seconds))
        if met != _SAME:
            raise ProcessError(f"{what} (request {self.number} of this run): {met}")
        if not self.is_first:
            return self._read("text", MAKING_SECONDS, what)
        try:
            made = make()
        except BaseException as error:
            self._write("text", f"{type(error).__name__}: {error}", failed=True)
            raise
        self._write("text", made)
        return made

    def _meet(self, what: str, digest: str, seconds: float) -> str:
        """The first process: wait for all, compare; tell the others, and say, how that went."""
        end, asked = time.monotonic() + seconds, {self.members[0]: digest}
        self._set(f"asked/{self.store.rank}", digest)
        for rank in self.members[1:]:
            found = self._wait(f"asked/{rank}", max(0.0, end - time.monotonic()), rank)
            if found is None:  # the limit is over, or the process: who else has come by now
                here = self.store.entries(f"{self._folder}/asked")
                asked |= {int(rank): text for rank, text in here.items()}
                break
            asked[rank] = found
        told = [text for text in asked.values() if text.startswith((_FAILED, _LEFT))]
        missing = [rank for rank in self.members if rank not in asked]
        if told:
            met = told[0].removeprefix(_FAILED).removeprefix(_LEFT)
        elif missing:
            met = self._missing(missing, seconds)
        else:
            met = _SAME if len(set(asked.values())) == 1 else _DIFFER
        self._set("met", met if met in (_SAME, _DIFFER) else _FAILED + met)
        if self.number > 1 and not missing:  # all are done with what was before
            self.store.delete(f"{self._group}/{self.number - 1}")
        return met

    def _wait_met(self, what: str, digest: str, seconds: float) -> str:
        """The others: ask, and wait for what the first process says."""
        mine = f"asked/{self.store.rank}"
        self._set(mine, digest)
        met = self._wait("met", seconds + _GRACE_SECONDS, self.members[0])
        if met is not None:
            return met.removeprefix(_FAILED)
        came = self.store.entries(f"{self._folder}/asked")
        missing = self._missing([r for r in self.members if str(r) not in came] or [self.members[0]], seconds)
        self._set(mine, f"{_LEFT}rank {self.store.rank} has waited and left: {missing}")
        return missing

    def _missing(self, missing: Sequence[int], seconds: float) -> str:
        ended = {rank: how for rank, how in self.store.ended().items() if rank in missing}
        if ended:
            return "; ".join(f"rank {rank} has not asked for it and will not: it {how}" for rank, how in ended.items())
        have = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {_listed(missing)} have"
        return (
            f"{have} not asked for it within {seconds:g} s, of ranks {_listed(self.members)}. All of them must make "
            "the same calls in the same order: look at what the missing ones did last. Where they are only slow, "
            "SBP_AGREEMENT_SECONDS is the limit"
        )

    def _difference(self, what: str, facts: Mapping[str, str], seconds: float) -> str:
        """Every process tells its facts; the first one finds the first difference, all get its words."""
        if not self.is_first:
            self._write(f"facts/{self.store.rank}", json.dumps(dict(facts)))
            return self._read("why", seconds + _GRACE_SECONDS, what)
        told: dict[int, Mapping[str, str]] = {self.members[0]: facts}
        end = time.monotonic() + seconds
        try:
            for rank in self.members[1:]:
                told[rank] = json.loads(self._read(f"facts/{rank}", max(0.0, end - time.monotonic()), what))
        except ProcessError as error:
            why = f"the processes do not ask for the same, and not all said what they ask for: {error}"
        else:
            why = first_difference(told)
        text = (
            f"{what} (request {self.number} of this run): the processes do not ask for the same plan. {why}. All must "
            "make the same calls, of the same functions with the same options, in the same order (a function that goes "
            "through a set does so in another order in each process, unless all have the same PYTHONHASHSEED)"
        )
        self._write("why", text)
        return text

    def _set(self, key: str, text: str) -> None:
        self.store.set(f"{self._folder}/{key}", text)

    def _wait(self, key: str, seconds: float, writer: int) -> str | None:
        return self.store.wait(f"{self._folder}/{key}", seconds, of=writer)

    def _write(self, key: str, text: str, failed: bool = False) -> None:
        """A long text, packed, in pieces; how many they are comes last."""
        packed = base64.b64encode(zlib.compress(text.encode(), 1)).decode()
        pieces = [packed[i : i + _PIECE] for i in range(0, len(packed), _PIECE)]
        for k, piece in enumerate(pieces[1:], 1):
            self._set(f"{key}/{k}", piece)
        self._set(f"{key}/0", f"{_FAILED if failed else ''}{len(pieces)}:{pieces[0]}")

    def _read(self, key: str, seconds: float, what: str) -> str:
        writer = int(key.rpartition("/")[2]) if key.startswith("facts/") else self.members[0]
        start = self._wait(f"{key}/0", seconds, writer)
        if start is None:
            ended = self.store.ended().get(writer)
            if ended:
                raise ProcessError(f"{what} (request {self.number} of this run): rank {writer} {ended}")
            raise ProcessError(
                f"{what} (request {self.number} of this run): rank {writer} has not made it in {seconds:g} s"
            )
        count, _, piece = start.removeprefix(_FAILED).partition(":")
        pieces = [piece, *(self.store.get(f"{self._folder}/{key}/{k}") for k in range(1, int(count)))]
        text = zlib.decompress(base64.b64decode("".join(pieces))).decode()
        if start.startswith(_FAILED):
            raise ProcessError(f"{what} (request {self.number} of this run): rank {self.members[0]} failed: {text}")
        return text


def request(members: Sequence[int]) -> Request | None:
    """This process's next request in a group of ranks; None where it is not one of several in it."""
    if len(members) < 2:
        return None
    shared = store()
    return Request(members, shared) if shared.rank in members else None


def first_difference(told: Mapping[int, Mapping[str, str]]) -> str:
    """The first fact that is not the same in all, the first line of it that is not, and who has which.

    What stands before a tab in a line is shown with it, and is not compared.
    """
    ranks = sorted(told)
    for name in dict.fromkeys(name for rank in ranks for name in told[rank]):
        texts = {rank: told[rank].get(name, "") for rank in ranks}
        lines = {rank: text.splitlines() for rank, text in texts.items()}
        for k in range(max(map(len, lines.values()))):
            here = {rank: found[k] if k < len(found) else "nothing" for rank, found in lines.items()}
            if len({_compared(text) for text in here.values()}) > 1:
                return f"First difference, {name}: {_sides(here)}"
    return "What they say of their requests is the same, and they asked with another"


def _compared(line: str) -> str:
    return line.rpartition("\t")[2]


def _sides(here: Mapping[int, str]) -> str:
    """Who has what; of two texts the part in which they differ."""
    sides: dict[str, list[int]] = {}
    heads: dict[str, str] = {}
    for rank, line in here.items():
        head, _, text = line.rpartition("\t")
        sides.setdefault(text, []).append(rank)
        heads.setdefault(text, f"{head} " if head else "")
    (a, first), (b, second), *more = sides.items()
    shown = "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks)}: {heads[whole]}{text}"
        for whole, ranks, text in zip((a, b), (first, second), both(a, b), strict=True)
    )
    return shown + (f"; other again: ranks {_listed([r for _, ranks in more for r in ranks])}" if more else "")


def _arrival_seconds() -> float:
    text = os.environ.get("SBP_AGREEMENT_SECONDS", "").strip()
    try:
        seconds = float(text) if text else ARRIVAL_SECONDS
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ProcessError(
            f"the environment variable SBP_AGREEMENT_SECONDS is {text!r}: it must be seconds, more than 0"
        )
    return seconds


def _ranges(ranks: Sequence[int]) -> list[str]:
    """Sorted ranks with runs as ``0:4``."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([rank, rank + 1])
    return [f"{a}:{b}" for a, b in found]


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
