"""Every schedule over a grid: it can run, takes what its formula says, and holds what it promises."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_jax.errors import ScheduleError
from sbp_jax.schedules import (
    Kind,
    Schedule,
    StageSeconds,
    Task,
    by_name,
    check,
    peak_held,
    peak_versions,
    schedules,
    simulate,
    versions_used,
)
from sbp_jax.schedules.schedule import needs, result

UNIT = StageSeconds()
RANKS = range(1, 9)
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 21)
NAMES = (
    "gpipe", "1f1b", "eager_1f1b", "interleaved_1f1b", "interleaved_gpipe", "zb_h1", "zb_v", "dualpipe_v", "chimera",
    "pipedream", "pipedream_2bw",
)  # fmt: skip
# Whole numbers: sums are exact, and so is the comparison of fractions.
SECONDS = (
    StageSeconds(1, 1, 1),  # F = I = W
    StageSeconds(2, 1, 1),  # F = B
    StageSeconds(4, 4, 3),
    StageSeconds(2, 3, 1),
    StageSeconds(1, 5, 9),
    StageSeconds(9, 1, 4),
    StageSeconds(3, 2, 2, backward=5),
)


def fits(name: str, ranks: int, microbatches: int) -> bool:
    """Whether a schedule is possible for these numbers."""
    return {
        "interleaved_1f1b": microbatches % ranks == 0,
        "dualpipe_v": microbatches >= 2 * ranks,
        "chimera": ranks % 2 == microbatches % 2 == 0,
        "pipedream_2bw": microbatches >= ranks,
    }.get(name, True)


def grid(name: str) -> Iterator[tuple[int, int, dict[str, int], Schedule]]:
    """All schedules of a name that are tried: (ranks, micro-batches, options, schedule)."""
    for p in RANKS:
        for m in MICROBATCHES:
            for options in ({}, {"chunks": 3}) if "chunks" in schedules()[name].options else ({},):
                if fits(name, p, m):
                    yield p, m, options, by_name(name, p, m, **options)


def test_the_names_are_those_of_the_registry() -> None:
    assert set(NAMES) == set(schedules())


@pytest.mark.parametrize("name", NAMES)
def test_tables_pass_the_check_and_hold_what_they_promise(name: str) -> None:
    for p, m, options, schedule in grid(name):
        check(schedule)
        assert (schedule.name, schedule.ranks, schedule.microbatches) == (name, p, m)
        promised = schedules()[name].peak(p, m, **options)
        assert peak_held(schedule) == promised, (p, m, options)
        check(schedule, registers=promised)


@pytest.mark.parametrize("name", NAMES)
def test_the_simulated_bubble_is_that_of_the_formula(name: str) -> None:
    known = 0
    for p, m, options, schedule in grid(name):
        for seconds in SECONDS:
            formula = schedules()[name].bubble(p, m, seconds, **options)
            if formula is not None:
                known += 1
                assert simulate(schedule, seconds).bubble_fraction() == formula, (p, m, options, seconds)
    assert known >= 60


LENGTHS = st.integers(1, 30)


@given(st.sampled_from(NAMES), st.integers(1, 8), st.integers(1, 24), LENGTHS, LENGTHS, st.integers(-9, 9))
@settings(max_examples=200, deadline=None)
def test_formulas_hold_for_any_lengths(name: str, p: int, m: int, f: int, w: int, more: int) -> None:
    # Formulas often need lengths that are nearly equal.
    seconds = StageSeconds(f, f + max(0, more), w)
    if fits(name, p, m):
        formula = schedules()[name].bubble(p, m, seconds)
        assert formula is None or simulate(by_name(name, p, m), seconds).bubble_fraction() == formula


@pytest.mark.parametrize("name", NAMES)
def test_a_formula_is_known_where_the_papers_have_one(name: str) -> None:
    for p, m, options, _ in grid(name):
        # F = I = W, or F = B for Chimera.
        seconds = StageSeconds(2, 1, 1) if name == "chimera" else UNIT
        assert schedules()[name].bubble(p, m, seconds, **options) is not None


@pytest.mark.parametrize("name", NAMES)
def test_only_pipedream_changes_the_mathematics(name: str) -> None:
    for p, m, _, schedule in grid(name):
        versions = {"pipedream": tuple(min(p - r, m) for r in range(p)), "pipedream_2bw": (2,) * p}.get(name, (1,) * p)
        assert schedule.weight_versions == versions
        assert schedule.is_synchronous == (not name.startswith("pipedream"))


@pytest.mark.parametrize("name", NAMES)
def test_versions_held_are_those_promised_in_runs_that_are_long_enough(name: str) -> None:
    for p, m, _, schedule in grid(name):
        held = peak_versions(schedule)
        assert all(a <= b for a, b in zip(held, schedule.weight_versions, strict=True))
        if schedule.is_synchronous or (m >= 2 * p and schedule.updates > 1):
            assert held == schedule.weight_versions
        for rank in range(schedule.ranks):
            used = versions_used(schedule, rank)
            late = {"pipedream": p - 1 - rank}.get(name, 0)
            every, delay = schedule.update_every or m, schedule.update_delay or 0
            assert used == tuple(max(0, k // every - delay - late) for k in range(m))


def bubble(name: str, ranks: int, microbatches: int, seconds: StageSeconds = UNIT, **options: int) -> float:
    return simulate(by_name(name, ranks, microbatches, **options), seconds).bubble_fraction()


def test_bubbles_of_the_papers_in_numbers() -> None:
    p, m = 4, 8
    assert bubble("gpipe", p, m) == bubble("1f1b", p, m) == bubble("eager_1f1b", p, m) == 3 / 11
    assert bubble("interleaved_1f1b", p, m, chunks=2) == bubble("interleaved_gpipe", p, m, chunks=2) == 3 / 19
    # A third of 1F1B's (p-1)(F+B) = 9 slots, beside 3m of work.
    assert bubble("zb_h1", p, m) == 3 / 27
    # Table 2 of Chimera: (D-2)/(2N+D-2), and (D-2)/(3N/2+D-2) where B is twice F and N = D.
    assert bubble("chimera", 4, 8, StageSeconds(2, 1, 1)) == 2 / 18
    assert bubble("chimera", 8, 8) == 6 / 18


def test_zb_v_has_no_bubble_within_the_span_of_any_rank() -> None:
    for p in RANKS:
        timing = simulate(by_name("zb_v", p, 2 * p - 1))
        assert [timing.span_bubble_fraction(r) for r in range(p)] == [0.0] * p
    timing = simulate(by_name("zb_v", 5, 8))
    assert timing.span_bubble_fraction(0) > 0


def test_zb_v_holds_as_much_as_1f1b() -> None:
    # Its chunks are half a stage of 1F1B.
    assert max(peak_held(by_name("zb_v", 6, 20))) == 2 * max(peak_held(by_name("1f1b", 6, 20)))


def test_first_rank_of_interleaved_1f1b_holds_what_korthikanti_says() -> None:
    p, v = 8, 3
    held = peak_held(by_name("interleaved_1f1b", p, 4 * p, chunks=v))[0]
    assert held / v == p * (1 + (p - 1) / (p * v))


def makespan_of_pairs(schedule: Schedule, seconds: StageSeconds) -> float:
    """The makespan where an F and the B of the other chunk after it are one task, as DeepSeek counts them."""
    groups: list[list[tuple[Task, ...]]] = []
    for tasks in schedule.tasks:
        left, found = list(tasks), []
        while left:
            pair = tuple(left[:2])
            kinds = [t.kind for t in pair]
            size = 2 if kinds == [Kind.FORWARD, Kind.BACKWARD] and pair[0].stage != pair[1].stage else 1
            found.append(pair[:size])
            del left[:size]
        groups.append(found)
    # The first such pair of the last rank is not overlapped: the forward's result is needed at once.
    first = next(k for k, group in enumerate(groups[-1]) if len(group) == 2)
    groups[-1][first : first + 1] = [groups[-1][first][:1], groups[-1][first][1:]]
    ready, free = {}, [0.0] * schedule.ranks
    while any(groups):
        for rank, left in enumerate(groups):
            while left:
                own = {result(t) for t in left[0]}
                wanted = [v for t in left[0] for v in needs(t, schedule.stages) if v not in own]
                if not all(v in ready for v in wanted):
                    break
                start = max([free[rank], *(ready[v] for v in wanted)])
                free[rank] = start + sum(seconds.of(t.kind) for t in left[0])
                ready |= dict.fromkeys(own, free[rank])
                del left[0]
    return max(free)


@pytest.mark.parametrize("seconds", [StageSeconds(1, 1, 1), StageSeconds(4, 4, 3), StageSeconds(5, 5, 2)])
def test_dualpipe_v_has_deepseeks_bubble_where_pairs_are_one_task(seconds: StageSeconds) -> None:
    f, b, w = seconds.forward, seconds.whole_backward, seconds.weight_gradient
    for p in RANKS:
        m = 2 * p + 3
        idle = makespan_of_pairs(by_name("dualpipe_v", p, m), seconds) - 2 * m * (f + b)
        assert idle == (p - 1) * ((f + b) + b - 3 * w)


def test_eager_1f1b_hides_transfers_that_1f1b_waits_for() -> None:
    p, m, seconds = 4, 24, StageSeconds(2, 2, 2)

    def makespan(name: str, transfer: float) -> float:
        return simulate(by_name(name, p, m), seconds, transfer).makespan_seconds

    # At the start and the end each transfer is waited for, on the way there and back: 2(p-1) in all.
    assert makespan("eager_1f1b", 1.0) == makespan("eager_1f1b", 0.0) + 2 * (p - 1)
    assert makespan("1f1b", 1.0) > makespan("eager_1f1b", 1.0) + m / 2


def test_chimera_runs_two_directions() -> None:
    schedule = by_name("chimera", 4, 8)
    assert schedule.placement == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert schedule.routes == (0, 0, 1, 1, 0, 0, 1, 1)
    assert schedule.stages_of(1) == ((0, 1), (1, 2))


def test_stages_of_v_shaped_schedules_begin_and_end_at_rank_0() -> None:
    for name in ("zb_v", "dualpipe_v"):
        assert by_name(name, 3, 6).placement == ((0, 1, 2, 2, 1, 0),)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "message"),
    [
        (
            "interleaved_1f1b", 4, 6,
            "schedule 'interleaved_1f1b' needs micro-batches divisible by ranks, but 6 is not divisible by 4: "
            "take 4 or 8 micro-batches, or 'interleaved_gpipe' or '1f1b', which take any",
        ),
        (
            "interleaved_1f1b", 4, 3,
            "schedule 'interleaved_1f1b' needs micro-batches divisible by ranks, but 3 is not divisible by 4: "
            "take 4 micro-batches, or 'interleaved_gpipe' or '1f1b', which take any",
        ),
        (
            "dualpipe_v", 4, 7,
            "schedule 'dualpipe_v' needs at least two micro-batches a rank, 8 for 4 ranks, but there are 7: "
            "take more micro-batches, fewer ranks, or 'zb_v', which takes any",
        ),
        (
            "chimera", 3, 5,
            "schedule 'chimera' needs even numbers of ranks and micro-batches, one half for each direction, but there "
            "are 3 ranks and 5 micro-batches: take one more or one less, or '1f1b', which takes any",
        ),
        (
            "pipedream_2bw", 4, 3,
            "schedule 'pipedream_2bw' needs at least as many micro-batches as ranks, but there are 3 for 4 ranks: "
            "take 4 micro-batches or more, or 'pipedream', which keeps more versions of weights",
        ),
        ("gpipe", 0, 4, "schedule 'gpipe': ranks is 0, must be an int of at least 1"),
        ("1f1b", 4, True, "schedule '1f1b': microbatches is True, must be an int of at least 1"),
    ],
)  # fmt: skip
def test_numbers_that_are_not_possible(name: str, ranks: int, microbatches: int, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        by_name(name, ranks, microbatches)
    assert str(error.value) == message
