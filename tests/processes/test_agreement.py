"""One text for all, without processes: threads that share a store stand for them."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sbp_jax.errors import ProcessError
from sbp_jax.processes import agreement
from sbp_jax.processes.agreement import Request, first_difference
from sbp_jax.processes.store import Store, _Single

FACTS = {"function": "step", "option": "pad=True\nzero_stage=1", "program": "abc"}


class Group:
    """So many ranks, each in a thread, that share a store and nothing else."""

    def __init__(self, size: int) -> None:
        self.shared, self.size = _Single(), size
        self.turns: list[Counter[Any]] = [Counter() for _ in range(size)]

    def request(self, rank: int, members: tuple[int, ...] | None = None) -> Request:
        made = object.__new__(Request)
        Request.__init__(made, members or range(self.size), Store(rank, self.size, self.shared))
        key = made.members
        self.turns[rank][key] += 1  # numbers are a process's own: threads of one process would share them
        made.number = self.turns[rank][key]
        made._folder = f"{made._group}/{made.number}"
        return made

    def run(self, each: Callable[[int], Any]) -> list[Any]:
        """What each rank returned, or the error that it raised."""
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                found[rank] = each(rank)
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        return found


def texts(found: list[Any]) -> list[str]:
    assert all(isinstance(x, ProcessError) for x in found), found
    return [str(x) for x in found]


def test_the_first_makes_it_and_all_get_it() -> None:
    group, made = Group(4), []

    def make(rank: int) -> str:
        made.append(rank)
        return f"text {len(made)}"

    for k in range(3):
        found = group.run(lambda rank: group.request(rank).agree("it", FACTS, lambda: make(rank)))
        assert found == [f"text {k + 1}"] * 4 and made == [0] * (k + 1)
    # What all have read is forgotten.
    assert {name.split("/")[3] for name, _ in group.shared.key_value_dir_get("sbp/agreement")} == {"3"}


def test_groups_of_other_ranks_have_numbers_of_their_own() -> None:
    group = Group(4)
    some = group.run(lambda r: group.request(r, (1, 3)).agree("it", FACTS, lambda: f"of {r}") if r in (1, 3) else "")
    assert some == ["", "of 1", "", "of 1"]
    assert group.run(lambda r: group.request(r).agree("it", FACTS, lambda: f"of {r}")) == ["of 0"] * 4


def test_a_long_text_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_PIECE", 1000)
    long = "\n".join(f"{k * 7919 % 10007}" for k in range(20000))
    group = Group(2)
    assert group.run(lambda rank: group.request(rank).agree("it", FACTS, lambda: long)) == [long, long]
    assert len(group.shared.key_value_dir_get("sbp/agreement")) > 30


def test_what_differs_first_is_named_with_its_ranks_on_all() -> None:
    group = Group(4)

    def facts(rank: int) -> Mapping[str, str]:
        return FACTS | ({"option": "pad=True\nzero_stage=2", "program": "xyz"} if rank in (1, 2) else {})

    found = texts(group.run(lambda r: group.request(r).agree("the plan of f", facts(r), lambda: pytest.fail("made"))))
    assert len(set(found)) == 1
    assert "the plan of f (request 1 of this run)" in found[0]
    assert "First difference, option: ranks 0, 3: zero_stage=1; ranks 1, 2: zero_stage=2" in found[0]
    # The group goes on.
    assert group.run(lambda r: group.request(r).agree("it", FACTS, lambda: "well")) == ["well"] * 4


def test_details_are_asked_for_only_where_something_differs() -> None:
    group = Group(2)
    asked: list[int] = []

    def details(rank: int, text: str) -> Mapping[str, str]:
        asked.append(rank)
        return {"program": f"op 0 (a.py:1)\tadd\nop 1 (b.py:{rank})\t{text}\nop 2 (c.py:3)\tsub"}

    same = group.run(lambda r: group.request(r).agree("it", FACTS, lambda: "x", lambda: details(r, "sin")))
    assert same == ["x", "x"] and not asked
    other = group.run(lambda r: group.request(r).agree(
        "it", FACTS | {"program": str(r)}, lambda: "x", lambda: details(r, "sin cos"[4 * r : 4 * r + 3])
    ))  # fmt: skip
    assert sorted(asked) == [0, 1]
    assert "rank 0: op 1 (b.py:0) sin; rank 1: op 1 (b.py:1) cos" in texts(other)[0]


def test_one_that_cannot_ask_tells_the_others() -> None:
    for broken in (0, 2):
        group = Group(3)

        def each(rank: int, group: Group = group, broken: int = broken) -> str:
            asked = group.request(rank)
            if rank == broken:
                asked.fail("TypeError: no such thing")
                raise TypeError("no such thing")
            return asked.agree("the plan of f", FACTS, lambda: "x")

        found = group.run(each)
        assert isinstance(found.pop(broken), TypeError)
        assert all(f"rank {broken}: TypeError: no such thing" in text for text in texts(found))


def test_those_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBP_AGREEMENT_SECONDS", "0.3")
    monkeypatch.setattr(agreement, "_GRACE_SECONDS", 0.5)
    for absent in (0, 1, 2):
        group = Group(4)

        def each(rank: int, group: Group = group, absent: int = absent) -> str:
            return "" if rank == absent else group.request(rank).agree("it", FACTS, lambda: "x")

        found = group.run(each)
        found.pop(absent)
        assert all(f"rank {absent} has not asked for it within 0.3 s, of ranks 0, 1, 2, 3" in x for x in texts(found))
        # Whoever comes later does not wait for those that have left.
        late = group.request(absent)
        with pytest.raises(ProcessError, match="has not asked for it"):
            late.agree("it", FACTS, lambda: "x")


def test_an_error_of_the_one_that_makes_it_ends_the_wait_of_all() -> None:
    group = Group(3)

    def make() -> str:
        raise KeyError("gone")

    found = group.run(lambda rank: group.request(rank).agree("the plan of f", FACTS, make))
    assert isinstance(found[0], KeyError)
    assert all("the plan of f (request 1 of this run): rank 0 failed: KeyError: 'gone'" in x for x in texts(found[1:]))


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SBP_AGREEMENT_SECONDS", text)
    with pytest.raises(ProcessError, match="SBP_AGREEMENT_SECONDS is"):
        Group(1).request(0).agree("it", FACTS, lambda: "x")


def test_a_line_too_many_is_a_difference() -> None:
    told = {0: {"option": "a=1"}, 1: {"option": "a=1\nb=2"}, 2: {"option": "a=1\nc=3"}}
    words = "First difference, option: rank 0: nothing; rank 1: b=2; other again: ranks 2"
    assert first_difference(told) == words


def test_alone_there_is_nothing_to_agree_on() -> None:
    assert agreement.request([]) is None
    assert agreement.request([0]) is None
    assert agreement.request([1, 2]) is None
