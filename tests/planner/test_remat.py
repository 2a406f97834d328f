"""``remat="auto"``: seconds against bytes, by minimum cuts; under a memory limit the cheapest mix wins."""

import functools
import re
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax import Plan
from sbp_jax.calls import capture
from sbp_jax.cluster import get
from sbp_jax.plan import PlanData
from sbp_jax.planner import Request, make_plan
from sbp_jax.planner.budget import Budget
from sbp_jax.planner.costs.cost_graph import penalised
from sbp_jax.planner.costs.op_cost import CostModel
from sbp_jax.planner.memory.infeasible import NoneCheaper, OutOfTime, TooSmall
from sbp_jax.planner.prepare import prepare
from sbp_jax.planner.remat import climb
from sbp_jax.planner.remat import search as remat
from sbp_jax.planner.remat.held import Held
from sbp_jax.planner.remat.known import Known
from sbp_jax.planner.remat.min_cut import Ladder, Sizes, find_turn
from sbp_jax.trace import Program, recompute
from zoo import gpt, resnet

GPT = {"layers": 8, "hidden": 256, "heads": 8, "seq": 256, "vocab": 512, "batch": 64, "dropout": 0.0}


def where(*shape: int) -> sbp.Placement:
    return sbp.placement.abstract(shape, axis_names=("dp", "tp")[: len(shape)], cluster="a100-80")


def planned(limit: float | None, remat, **options) -> Plan:
    case = gpt.build("tiny", **GPT, **options)
    config = sbp.AutoParallelConfig(memory_limit=limit, remat=remat)
    return sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=where(8), donate_argnums=0,
                    config=config)  # fmt: skip


@pytest.mark.parametrize("scan", [pytest.param(False, marks=pytest.mark.slow), True])
def test_short_of_memory_the_planner_recomputes_and_fits(scan: bool) -> None:
    free = planned(None, "auto", scan_layers=scan)
    assert free.recomputed is None
    limit = 0.5 * free.memory_per_device
    tight = planned(limit, "auto", scan_layers=scan)
    assert tight.recomputed is not None and tight.memory_per_device <= limit
    assert tight.compute_seconds > free.compute_seconds
    try:
        assert tight.objective <= planned(limit, None, scan_layers=scan).objective
    except sbp.PlanError:
        pass  # without recomputation nothing fits


def deep(ws, x):
    def loss(ws):
        return jnp.mean(functools.reduce(lambda h, w: jax.nn.relu(h @ w), ws, x) ** 2)

    value, grads = jax.value_and_grad(loss)(ws)
    return jax.tree.map(lambda w, d: w - 0.1 * d, ws, grads), value


DEEP = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 6, jax.ShapeDtypeStruct((8192, 1024), jnp.float32)


def test_the_next_mix_begins_with_the_plan_and_the_prices_of_the_one_before() -> None:
    """In those signatures the program that reads arguments anew takes as long."""
    program, _, _ = capture.trace(deep, DEEP, {}, (), (0,))
    hardware = get("a100-80")
    request = Request(placement=where(8), cluster=hardware, share_layers=False)
    free = make_plan(program, request)
    request = replace(request, memory_limit_bytes=0.7 * free.memory_per_device)
    plan = make_plan(program, request)
    assert plan.byte_prices and free.byte_prices == {}
    turn = find_turn(program, Sizes(program, free, CostModel(hardware, (8,))))
    assert turn is not None
    anew, origin = recompute(program, turn.node, ())
    assert len(anew.nodes) > len(program.nodes)
    other = prepare(anew, request)
    known = Known(plan, range(len(program.nodes)), origin)
    start = known.start(other.graph, other.decisions, other.footprint, Budget())
    assert other.graph.evaluate(start.plans[0]) == pytest.approx(plan.objective, rel=1e-6)
    assert other.footprint.over_time(start.plans[0]).max() == pytest.approx(plan.memory_per_device, rel=0.01)
    priced = penalised(other.graph, [(price, other.footprint.at(t)) for t, price in start.prices.items()])
    assert priced.evaluate(start.plans[1]) <= (1 + 1e-2) * priced.evaluate(start.plans[0])
    assert sum(start.prices.values()) == pytest.approx(sum(plan.byte_prices.values()))
    none = Known(plan, [-1] * len(program.nodes), origin).start(other.graph, other.decisions, other.footprint, Budget())
    assert not none.plans and not none.prices
    assert start.known_seconds == none.known_seconds == plan.objective


def test_a_gathered_argument_that_nothing_replaces_is_held_until_it_is_read_anew() -> None:
    """As adapters' base weights are: the result hands them on, which reads them last of all."""

    def step(state, x):
        ws, scales = state

        def loss(scales):
            pairs = zip(ws, scales, strict=True)
            return jnp.mean(functools.reduce(lambda h, p: h + jnp.sin(h @ p[0]) * p[1], pairs, x) ** 2)

        value, grads = jax.value_and_grad(loss)(scales)
        return (ws, jax.tree.map(lambda p, d: p - 0.1 * d, scales, grads)), value

    def f32(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    args = ([f32(512, 512)] * 6, [f32(512)] * 6), f32(2048, 512)
    place = sbp.placement("cpu", range(8))
    free = sbp.plan(step, *args, placement=place, donate_argnums=0).memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=0.6 * free, remat="auto")
    tight = sbp.auto_parallel(step, placement=place, donate_argnums=0, config=config)
    m = tight.lower(*args).compile().memory_analysis()
    xla = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
    assert 0.9 <= tight.plan(*args).memory_per_device / xla <= 1.15


def test_arguments_may_be_read_anew_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO's third stage: a parameter's copy need not be held from the forward part to the backward one."""
    of_sum = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=of_sum)
    limit = 0.7 * free.memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=limit, overlap=False)
    bounds: list[float] = []
    seconds: list[float] = []

    def remembered(program, request, name):
        plan = make_plan(program, request, name)
        bounds.extend([plan.bound] if request.memory_limit_bytes is not None else [])
        seconds.append(plan.planning_seconds)
        return plan

    monkeypatch.setattr(remat, "make_plan", remembered)
    tight = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert tight.recomputed is not None and not tight.recomputed.nodes and tight.memory_per_device <= limit
    assert len(bounds) > 1 and tight.bound == min(bounds), "proven for one mix only"
    assert tight.planning_seconds >= sum(seconds), "a time limit counts every mix"
    assert any("arguments are read anew" in note for note in tight.notes)
    assert tight.objective < 1.05 * free.objective, "the plan that holds all says where they had better be read anew"


@pytest.mark.parametrize(("effort", "searches"), [("default", 1), ("thorough", 2)])
def test_a_plan_hardly_dearer_than_without_a_limit_is_enough(monkeypatch: pytest.MonkeyPatch, effort, searches) -> None:
    config = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    count: list[int] = []
    monkeypatch.setattr(remat, "make_plan", lambda *args, **kwargs: (count.append(1), make_plan(*args, **kwargs))[1])
    config = sbp.AutoParallelConfig(memory_limit=0.99 * free.memory_per_device, overlap=False, effort=effort)
    tight = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert free.objective < tight.objective < 1.01 * free.objective and len(count) == searches


@pytest.mark.parametrize(("effort", "searches"), [("default", 1), ("thorough", 2)])
def test_what_saves_next_to_nothing_is_not_searched(monkeypatch: pytest.MonkeyPatch, effort, searches) -> None:
    """A fifth of the limit would be free, but at what a byte is worth that saves a hundredth of the step."""
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=sbp.AutoParallelConfig(overlap=False))
    count: list[int] = []
    monkeypatch.setattr(remat, "make_plan", lambda *args, **kwargs: (count.append(1), make_plan(*args, **kwargs))[1])
    config = sbp.AutoParallelConfig(memory_limit=0.9 * free.memory_per_device, overlap=False, effort=effort)
    tight = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert 1.01 * free.objective < tight.objective < 1.02 * free.objective and len(count) == searches
    assert 0 < tight.statistics["seconds_per_byte"] * tight.memory_per_device < tight.objective


def test_arguments_are_read_anew_where_that_promises_a_part_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever point has the price: one of several peaks alike has it, and which one says nothing."""
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=sbp.AutoParallelConfig(overlap=False))
    asked, told = remat._Choice.may_save, list[bool]()

    def at_prices(self, *given):
        plan, freed = self.tried[0], self.freed(*given)
        for promised in (0.02, 0.04):
            plan.statistics["seconds_per_byte"] = promised * plan.objective / freed
            told.append(asked(self, *given))
        return False

    monkeypatch.setattr(remat._Choice, "may_save", at_prices)
    monkeypatch.setattr(remat, "_is_close", lambda *_: False)
    config = sbp.AutoParallelConfig(memory_limit=0.9 * free.memory_per_device, overlap=False)
    sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert told == [False, True]


def test_what_frees_next_to_nothing_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near a limit arguments may be read anew; where they weigh little, that would be the same search twice."""

    def step(w, x):
        def loss(w):
            return jnp.mean(jax.nn.relu(jnp.exp(jnp.sin(x @ w)) @ w.T) ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        return w - 0.1 * grads, value

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((65536, 64), jnp.float32)
    config = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(step, *args, placement=where(8), donate_argnums=0, config=config)
    programs: list[int] = []

    def counted(program, *args, **kwargs):
        programs.append(len(program.nodes))
        return make_plan(program, *args, **kwargs)

    monkeypatch.setattr(remat, "make_plan", counted)
    config = sbp.AutoParallelConfig(memory_limit=1.01 * free.memory_per_device, overlap=False)
    assert sbp.plan(step, *args, placement=where(8), donate_argnums=0, config=config).recomputed is None
    assert len(programs) == 1


def test_each_mix_has_its_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that does all that it may leaves the others theirs; the gap is that of what was tried."""
    monkeypatch.setattr(climb, "_WORTH", 0.0)
    of_sum = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=of_sum)
    programs: list[int] = []
    bounds: list[float] = []

    def all_spent(program, request, name):
        if request.memory_limit_bytes is not None:
            programs.append(len(program.nodes))
        try:
            plan = make_plan(program, request, name)
        finally:
            if request.memory_limit_bytes is not None:
                request.budget.spend(request.budget.work_left)
        bounds.append(plan.bound)
        return plan

    monkeypatch.setattr(remat, "make_plan", all_spent)
    config = sbp.AutoParallelConfig(memory_limit=0.75 * free.memory_per_device, remat="auto", overlap=False)
    plan = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert len(programs) >= 2 and plan.bound == min(bounds[1:])


def test_what_was_not_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mix takes all the work; the next one is given up before anything is proven of it."""
    monkeypatch.setattr(climb, "_WORTH", 0.0)
    of_sum = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=of_sum)

    def all_of_it(program, request, name):
        if request.find_start is not None:
            raise OutOfTime("no plan was found in time", 0.0)
        plan = make_plan(program, request, name)
        if request.memory_limit_bytes is not None and request.budget.parent is not None:
            request.budget.parent.spend(request.budget.parent.work_left)
        return plan

    monkeypatch.setattr(remat, "make_plan", all_of_it)
    config = sbp.AutoParallelConfig(memory_limit=0.75 * free.memory_per_device, remat="auto", overlap=False)
    plan = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert plan.bound <= free.objective
    assert any("before every mix" in n and "plan without a limit" in n for n in plan.notes)
    assert not any("proven over the mixes" in n for n in plan.notes)
    assert not any("holding all" in n for n in plan.notes), "that was not searched"


def test_of_a_users_time_each_mix_first_gets_what_it_would_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the best one gets what is left. A search of one mix until its time is up left the others nothing."""
    of_sum = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=of_sum)
    asked: list[tuple[int, bool, float]] = []

    def remembered(program, request, name):
        if request.memory_limit_bytes is not None:
            asked.append((len(program.nodes), request.thorough, request.budget.work))
        plan = make_plan(program, request, name)
        if not request.thorough:
            plan.bound *= 0.99  # as if more were left open
        return plan

    monkeypatch.setattr(remat, "make_plan", remembered)
    limit = 0.75 * free.memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=limit, remat="auto", overlap=False, time_limit=300.0, gap=0.0)
    plan = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    *usual, (nodes, thorough, work) = asked
    assert len(usual) >= 2 and not any(t for _, t, _ in usual) and all(w < np.inf for _, _, w in usual)
    assert thorough and work == np.inf and nodes in [n for n, _, _ in usual], "the best of them is searched on"
    by_default = sbp.AutoParallelConfig(memory_limit=limit, remat="auto", overlap=False)
    usually = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=by_default)
    assert plan.objective <= usually.objective


@pytest.mark.parametrize("seconds", ["0.0001", "1e-09"])
@pytest.mark.filterwarnings("ignore:time_limit=.* is too short")
def test_a_users_time_that_is_up_at_once_is_told(seconds: str) -> None:
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0)
    limit = 0.5 * free.memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=limit, remat="auto", time_limit=float(seconds))
    with pytest.raises(
        sbp.PlanError, match=rf"time_limit={seconds} s is too short .* Raise time_limit, or memory_limit"
    ):
        sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)


def test_a_mix_that_is_proven_to_take_longer_is_not_searched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    of_sum = sbp.AutoParallelConfig(overlap=False)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=of_sum)
    found: list[float | None] = []

    def dear(program, request, name):
        if request.find_start is not None:  # a mix after the first: as if the plan before had taken a tenth
            at = request.find_start
            request = replace(request, find_start=lambda *x: replace(at(*x), known_seconds=0.1 * free.objective))
        try:
            found.append(make_plan(program, request, name).objective)
        except NoneCheaper:
            found.append(None)
            raise
        return make_plan(program, request, name)

    monkeypatch.setattr(remat, "make_plan", dear)
    config = sbp.AutoParallelConfig(memory_limit=0.75 * free.memory_per_device, remat="auto", overlap=False)
    plan = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert None in found and plan.objective == min(x for x in found[1:] if x is not None)


@pytest.mark.parametrize("remat_asked", [None, "auto"])
def test_a_limit_too_small_for_every_mix(remat_asked: Literal["auto"] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest limit is that of the mix that holds least, the proof holds for all, and there is a plan at it."""
    refused: list[TooSmall] = []
    proven: dict[int, float] = {}
    told: list[bool] = []

    def remembered(program, request, name):
        try:
            return make_plan(program, request, name)
        except TooSmall as error:
            refused.append(error)
            n = len(program.nodes)  # of each mix, what is proven in any search
            proven[n] = max(proven.get(n, 0.0), error.least_bytes)
            told.append(request.tell_smallest)
            raise

    monkeypatch.setattr(remat, "make_plan", remembered)

    def within(limit: float) -> Plan:
        config = sbp.AutoParallelConfig(memory_limit=limit, remat=remat_asked, overlap=False)
        return sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)

    with pytest.raises(sbp.PlanError) as error:
        within(1000.0)
    numbers = re.search(
        r"the smallest that one does is (\d+) bytes.*every plan holds at least (\d+) ", str(error.value)
    )
    assert numbers is not None and len(refused) > 1
    smallest, least = map(float, numbers.groups())
    assert smallest <= min(e.smallest_bytes for e in refused) + 1 and least <= min(proven.values()) + 1
    assert least <= smallest and any(told)
    if remat_asked:
        assert smallest < max(e.least_bytes for e in refused), "what is proven for one mix is not for another"
    else:
        assert told[:2] == [False, False], "the smallest is looked for at the end"
    assert within(smallest).memory_per_device <= smallest


def test_what_the_search_for_the_smallest_finds_within_the_limit_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """With remat="auto" it is not part of each mix's search: it comes at the end."""

    def only_then(program, request, name):
        if request.memory_limit_bytes is not None and not request.tell_smallest:
            raise TooSmall("no plan fits", 1e9 / len(program.nodes), 1e9 / len(program.nodes))
        return make_plan(program, request, name)

    monkeypatch.setattr(remat, "make_plan", only_then)
    free = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0)
    config = sbp.AutoParallelConfig(memory_limit=0.9 * free.memory_per_device, remat="auto", overlap=False)
    plan = sbp.plan(deep, *DEEP, placement=where(8), donate_argnums=0, config=config)
    assert plan.recomputed is not None and plan.memory_per_device <= 0.9 * free.memory_per_device
    assert any("run again in the backward part" in note for note in plan.notes)


@pytest.mark.parametrize(("found", "searched"), [(1500.0, [2.0]), (3000.0, [2.0, 1.0])])
def test_a_mix_that_is_proven_to_hold_more_is_not_searched_for_its_smallest(
    found: float, searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two mixes the one with the lower proof is first: the other's, 2,000 bytes, may lie above what it finds."""
    program = capture.trace(deep, DEEP, {}, (), (0,))[0]
    request = Request(placement=where(8), cluster=get("a100-80"))
    choice = remat._Choice(program, request, "deep", 500.0)

    def refusal(holds: float, smallest: float, least: float, tells: bool = False) -> remat._Refused:
        error, asked = TooSmall("no plan fits", smallest, least), replace(request, tell_smallest=tells)
        return remat._Refused(error, holds, program, asked, None, lambda _: None)

    choice.refusals = [refusal(1.0, 9000.0, 2000.0), refusal(2.0, 9000.0, 1000.0)]
    asked: list[float] = []

    def attempt(program, request, origin, finish, holds):
        asked.append(holds)
        choice.refusals.append(refusal(holds, found, 1000.0, tells=True))

    monkeypatch.setattr(choice, "attempt", attempt)
    choice.look_for_smallest()
    assert asked == searched and choice.refusal.smallest_bytes == found


def test_mixes_are_tried_until_one_fits() -> None:
    """The first that should fit, by what the free plan holds, do not; one that makes more again does, in XLA, too."""
    case = gpt.build("tiny", batch=64, dropout=0.0)
    inputs = case.abstract_state(), case.batch(0)
    place = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    free = sbp.plan(case.step, *inputs, placement=place, donate_argnums=0)
    limit = 0.5 * free.memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=limit, remat="auto")
    step = sbp.auto_parallel(case.step, placement=place, donate_argnums=0, config=config)
    tight = step.plan(*inputs)
    assert tight.recomputed is not None and tight.recomputed.nodes and tight.memory_per_device <= limit
    m = step.lower(*inputs).compile().memory_analysis()
    xla = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
    assert 0.95 <= tight.memory_per_device / xla <= 1.15


def test_what_is_made_again_is_held_too() -> None:
    """Bytes over the turn fall from mix to mix; the peak rises where everything is made again at once."""
    case = gpt.build("tiny", batch=64, dropout=0.0)
    program, _, _ = capture.trace(case.step, (jax.eval_shape(case.init), case.batch(0)), {}, (), (0,))
    hardware = get("cpu")
    request = Request(placement=sbp.placement.abstract((2, 4), cluster="cpu"), cluster=hardware)
    free = make_plan(program, request)
    sizes = Sizes(program, free, CostModel(hardware, (2, 4)))
    turn = find_turn(program, sizes)
    assert turn is not None
    rungs = Ladder(program, free, turn, sizes).rungs()
    held = Held(program, free, turn, sizes, request)
    guessed = [held(r.nodes, Budget()) for r in rungs]
    assert guessed[-1] > 1.5 * guessed[-2] and rungs[-1].saved_bytes > rungs[-2].saved_bytes
    again = [make_plan(recompute(program, turn.node, r.nodes)[0], request).memory_per_device for r in rungs]
    np.testing.assert_allclose(guessed, again, rtol=0.1)


def test_the_smallest_limit_named_is_the_same_whatever_was_asked_for_and_has_a_plan() -> None:
    """The mix that holds least is between two of the ladder's; near the limit alone it was looked for."""
    case = resnet.build("tiny", batch=256)
    args = case.abstract_state(), case.batch(0)
    place = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))

    def within(limit: float | None) -> Plan:
        config = sbp.AutoParallelConfig(memory_limit=limit, remat="auto")
        return sbp.plan(case.step, *args, placement=place, donate_argnums=0, config=config)

    free = within(None).memory_per_device
    named: list[float] = []
    for part in (0.35, 0.8):
        with pytest.raises(sbp.PlanError, match="the smallest that one does is") as error:
            within(part * free)
        named += [float(n) for n in re.findall(r"Raise memory_limit to (\d+)", str(error.value))]
    assert len(named) == 2 and named[0] == named[1] < 0.92 * free
    assert within(named[0]).memory_per_device <= named[0]


def test_memory_that_suffices_recomputes_nothing() -> None:
    assert planned(80e9, "auto", scan_layers=True).recomputed is None


def test_the_choice_is_in_the_file_and_runs_from_it(tmp_path) -> None:
    case = gpt.build("tiny", dropout=0.0, layers=2, scan_layers=True)
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    free = sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=p, donate_argnums=0)
    config = sbp.AutoParallelConfig(memory_limit=0.8 * free.memory_per_device, remat="auto", gap=0.1)
    plan = sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=p, donate_argnums=0, config=config)
    assert plan.recomputed is not None
    plan.save(tmp_path / "plan.json")
    step = sbp.auto_parallel(case.step, plan=Plan.load(tmp_path / "plan.json"), donate_argnums=0)
    _, loss = step(case.init(), case.batch(0))
    np.testing.assert_allclose(loss, jax.jit(case.step)(case.init(), case.batch(0))[1], rtol=1e-5)


def test_what_costs_little_and_holds_much_goes_first() -> None:
    case = gpt.build("tiny", **GPT)
    program, _, _ = capture.trace(case.step, (jax.eval_shape(case.init), case.batch(0)), {}, (), (0,))
    p, cluster = where(8), get("a100-80")
    plan = make_plan(program, Request(placement=p, cluster=cluster))
    sizes = Sizes(program, plan, CostModel(cluster, p.shape))
    turn = find_turn(program, sizes)
    assert turn is not None
    ladder = Ladder(program, plan, turn, sizes)
    rungs = ladder.rungs()
    assert len(rungs) >= 2
    for r in rungs:
        assert ladder.saved(r.nodes) == pytest.approx(r.saved_bytes)
    rates = [r.seconds / r.saved_bytes for r in rungs]
    assert rates == sorted(rates) and rungs[-1].saved_bytes > 0.9 * turn.held_bytes


def test_other_words_than_auto_are_refused() -> None:
    with pytest.raises(sbp.PlanError, match=r"remat is None or 'auto', got 'full'.*jax.checkpoint"):
        sbp.AutoParallelConfig(remat="full")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("start_bound", "found", "bound", "searched"),
    [
        (0.98, None, 0.98, False),  # by hardly more than nothing
        (0.90, None, 1.00, True),  # proven: not cheaper
        (0.90, 0.97, 0.95, True),  # cheaper after all
    ],
)
def test_a_mix_that_was_but_a_start_is_searched_on_where_it_may_be_the_cheapest(
    start_bound: float, found: float | None, bound: float, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = capture.trace(deep, DEEP, {}, (), (0,))[0]
    request = Request(placement=where(8), cluster=get("a100-80"), remat=True, budget=Budget(1.0, spent=0.5))
    plan = make_plan(program, replace(request, budget=Budget()))
    choice = remat._Choice(program, request, "deep", 500.0)
    origin = range(len(program.nodes))

    def tried(objective: float, bound: float, start_gap: float) -> PlanData:
        of = replace(plan, objective=objective, bound=bound)
        choice.tried.append(of)
        choice.programs.append((program, replace(request, start_gap=start_gap), origin))
        return of

    start, best = tried(1.09, start_bound, 0.1), tried(1.0, 0.999, 0.0)
    asked: list[Request] = []

    def attempt(program: Program, request: Request, origin: Any) -> PlanData | None:
        asked.append(request)
        return None if found is None else tried(found, 0.95, 0.0)

    monkeypatch.setattr(choice, "attempt", attempt)
    cheapest = choice.deepened()
    assert len(asked) == searched and all(r.start_gap == 0 and r.find_start is not None for r in asked)
    assert start.bound == pytest.approx(bound)
    assert cheapest is (best if found is None else choice.tried[-1])
