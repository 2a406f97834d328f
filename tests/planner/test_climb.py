"""Which mixes of holding and making again are planned, and in which order, told from bytes and seconds alone."""

from collections.abc import Collection

from sbp_jax.planner.budget import Budget
from sbp_jax.planner.remat.climb import Climb, Outcome
from sbp_jax.planner.remat.min_cut import Rung

# Ten nodes; the more of them are made again the less is held, at rising prices.
SECONDS = [0.0001, 0.0002, 0.002, 0.004, 0.02, 0.03, 0.08, 0.1, 0.2, 0.3]
BYTES = [12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]


class Fake:
    """A ladder of the first two, four, six, eight and ten nodes; mixes that hold at most ``fits`` have a plan.

    ``asked``: how many nodes the mixes made again that were planned, in their order.
    """

    def __init__(
        self, fits: float, limit: float, holds: dict[int, float] | None = None, known: bool = False, spent: float = 0.5,
        thorough: bool = False,
    ) -> None:  # fmt: skip
        self.fits, self.limit, self.asked, self.starts = fits, limit, list[int](), list[int]()
        self.budget, self.thorough = Budget(work=1.0, spent=spent), thorough
        self.by_count = holds or {}
        self.found = list[tuple[Collection[int], float]]([((), 2.0)] if known else [])

    def rungs(self) -> list[Rung]:
        mixes = [frozenset(range(n)) for n in (2, 4, 6, 8, 10)]
        return [Rung(m, 0.0, self.seconds_of(m)) for m in mixes]

    def seconds_of(self, nodes: Collection[int]) -> float:
        return sum(SECONDS[n] for n in nodes)

    def saved(self, nodes: Collection[int]) -> float:
        return 0.0

    def holds(self, nodes: Collection[int], looks: Budget) -> float:
        return self.by_count.get(len(nodes), BYTES[len(nodes) - 1] if nodes else 13.0)

    def mix(self, nodes: Collection[int], holds: float, is_start: bool = False) -> Outcome:
        self.asked.append(len(nodes))
        self.starts += [len(nodes)] * is_start
        if holds > self.fits:
            return Outcome.TOO_LARGE
        self.found.append((nodes, 1.0 + self.seconds_of(nodes)))
        return Outcome.PLANNED

    def none_again(self) -> Outcome:
        return self.mix((), 13.0)

    def cheapest(self) -> tuple[Collection[int], float] | None:
        return min(self.found, key=lambda x: x[1], default=None)

    def run(self, turn_bytes: float = 13.0) -> list[int]:
        of = (
            self,
            self.holds,
            turn_bytes,
            1.0,
            self.limit,
            self.thorough,
            self.budget,
            Budget(),
            self.mix,
            self.none_again,
        )
        Climb(*of, lambda _: False, self.cheapest).run()  # pyright: ignore[reportArgumentType]
        return self.asked


def test_from_the_mix_that_should_fit_down_to_the_first_that_does_not() -> None:
    # Eight nodes hold 5 of 5; six, split more, fit; four do not, and two hold more than those.
    assert Fake(fits=7.0, limit=5.0).run(turn_bytes=5.0)[:3] == [8, 6, 4]
    assert 2 not in Fake(fits=7.0, limit=5.0).run(turn_bytes=5.0)


def test_what_can_be_hardly_cheaper_is_passed_over() -> None:
    # Two and four nodes differ by 0.6 % of the step.
    asked = Fake(fits=20.0, limit=5.0).run(turn_bytes=5.0)
    assert asked[:3] == [8, 6, 4] and 2 not in asked


def test_while_little_work_is_done_or_if_all_is_asked_for_none_is_passed_over() -> None:
    assert Fake(fits=20.0, limit=5.0, spent=0.0).run(turn_bytes=5.0)[:5] == [8, 6, 4, 2, 0]
    assert Fake(fits=12.0, limit=5.0, spent=0.0).run(turn_bytes=5.0)[:5] == [8, 6, 4, 2, 0]
    assert Fake(fits=20.0, limit=5.0, thorough=True).run(turn_bytes=5.0)[:5] == [8, 6, 4, 2, 0]
    assert 0 not in Fake(fits=10.0, limit=5.0, spent=0.0).run(turn_bytes=5.0)


def test_a_plan_that_makes_nothing_again_rules_no_mix_out() -> None:
    assert Fake(fits=20.0, limit=5.0, known=True).run(turn_bytes=5.0)[:3] == [8, 6, 4]


def test_a_mix_is_but_a_start_where_the_next_may_save_much() -> None:
    fake = Fake(fits=7.0, limit=5.0)
    fake.run(turn_bytes=5.0)
    assert fake.asked[0] == 8 and fake.starts == [8]  # six nodes save 18 % of a step without a limit
    fake = Fake(fits=20.0, limit=9.0)
    fake.run(turn_bytes=9.0)
    assert fake.asked[0] == 4 and not fake.starts  # two save 0.6 %


def test_between_two_mixes_what_saves_hardly_anything_is_passed_over() -> None:
    # Three nodes fit, two do not: one node less saves 0.4 %.
    assert 3 not in Fake(fits=9.5, limit=9.0, holds={3: 8.9}).run(turn_bytes=9.0)
    assert 3 in Fake(fits=9.5, limit=9.0, holds={3: 8.9}, thorough=True).run(turn_bytes=9.0)
    # Seven nodes instead of eight save 10 %.
    assert 7 in Fake(fits=5.5, limit=5.0, holds={7: 4.9}).run(turn_bytes=5.0)


def test_not_every_mix_between_two_is_looked_at() -> None:
    looked = list[int]()
    mixes = [frozenset(range(n)) for n in range(1, 12)]

    def holds(nodes: Collection[int], looks: Budget) -> float:
        looked.append(len(nodes))
        return abs(len(nodes) - 7) + 1.0

    climb = Climb(Fake(1.0, 1.0), holds, *[None] * 10)  # pyright: ignore[reportArgumentType]
    climb.ladder.seconds_of = lambda nodes: float(len(nodes))  # pyright: ignore[reportAttributeAccessIssue]
    assert len(climb._holding_least(mixes)) == 7
    assert len(set(looked)) < 9


def test_where_none_should_fit_the_cheapest_of_those_that_hold_least_is_first() -> None:
    # Nine nodes hold as little as ten, and cost less.
    assert Fake(fits=4.0, limit=1.0, holds={9: 3.01}).run()[0] == 9


def test_where_none_fits_those_that_hold_least_are_planned() -> None:
    # Of all, three nodes hold least: they are no rung, nor next to the least one.
    asked = Fake(fits=0.0, limit=1.0, holds={3: 2.5}).run()
    assert asked[0] == 10 and 3 in asked and asked.count(3) == 1
    asked = Fake(fits=2.5, limit=1.0, holds={3: 2.5}).run()
    assert asked.index(3) < 4 and 2 not in asked[: asked.index(3)]


def test_without_time_to_look_the_program_as_it_is_is_not_planned_again() -> None:
    fake = Fake(fits=20.0, limit=5.0)
    never = {n: float("inf") for n in range(11)}
    fake.by_count = never
    assert 0 not in fake.run()
