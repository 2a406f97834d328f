"""Rewritten programs: every substitution is proven, steps give the same numbers, and what TASO keeps costs less."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sbp_jax as sbp
from sbp_jax.planner import Request, follow, plan_or_rewrite
from sbp_jax.planner.budget import Budget
from sbp_jax.planner.rewriting import Move, NoMatch, apply, replay
from sbp_jax.planner.rewriting.apply import places
from sbp_jax.planner.rewriting.proof import Disproved, evaluate, prove
from sbp_jax.planner.rewriting.substitution import _KNOWN as known
from sbp_jax.planner.rewriting.substitution import Change, Substitution, lookup, substitutions
from sbp_jax.planner.rewriting.taso import taso
from sbp_jax.trace import Program, build, fingerprint

Arrays = dict[str, Any]


@pytest.mark.parametrize("name", list(substitutions()))
def test_every_substitution_is_proven_on_random_programs(name: str) -> None:
    assert prove(lookup(name), instances=240, seed=1) >= 120


def wrong(known: Substitution, make: Callable[[Change], Callable[..., Any]]) -> Substitution:
    def change(scope: Any, site: Any) -> Change | None:
        found = known.change(scope, site)
        return None if found is None else replace(found, make=make(found))

    return replace(known, change=change)


def test_a_wrong_substitution_is_refused() -> None:
    parallel = lookup("parallel products")
    with pytest.raises(Disproved, match=r"'parallel products' is wrong \(instance \d+, seed 0\): .*dot_general"):
        prove(wrong(parallel, lambda c: lambda *x: [2 * y for y in c.make(*x)]))
    swapped = wrong(lookup("transpose of a product"), lambda c: lambda x, y: [jnp.zeros(c.gives[0].shape, x.dtype)])
    with pytest.raises(Disproved):
        prove(swapped)
    longer = wrong(lookup("merged concatenations"), lambda c: lambda *x: [lax.concatenate([*x, x[0]], 0)])
    with pytest.raises((Disproved, TypeError)):
        prove(longer)
    nearly = wrong(parallel, lambda c: lambda *x: [y + jnp.asarray(1e-8, y.dtype) for y in c.make(*x)])
    with pytest.raises(Disproved, match="is wrong"):  # less than a rounding in float32
        prove(nearly)
    other = wrong(parallel, lambda c: lambda *x: [y.astype(jnp.int32) for y in c.make(*x)])
    with pytest.raises(Disproved, match="cannot be applied where it fits"):
        prove(other)
    with pytest.raises(Disproved, match="fitted in none of 5 random programs"):
        prove(replace(parallel, find=lambda scope: ()), instances=5)


def test_the_search_refuses_a_wrong_substitution(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = replace(wrong(lookup("parallel products"), lambda c: lambda *x: [-y for y in c.make(*x)]), name="bad")
    monkeypatch.setitem(known, "bad", bad)
    program = program_of(lambda x, a, b: (x @ a, x @ b), (4, 4), (4, 4), (4, 4))
    with pytest.raises(Disproved, match="'bad' is wrong"):
        taso(program, lambda p, origin: 1.0, {"steps": 50, "alpha": 2.0})


@pytest.mark.parametrize(("narrow", "wide"), [(np.int8, np.int32), (jnp.bfloat16, np.float32)])
def test_what_is_summed_in_a_wider_type_is_not_added_before(narrow: Any, wide: Any) -> None:
    """100 + 100 is -56 in int8, and 256 + 1 is 256 in bfloat16: a product of the sum would be another number."""

    def f(x: Any, a: Any, b: Any) -> Any:
        first, second = (lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=wide) for y in (a, b))
        return first + second

    program = build(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((4, 4), narrow) for _ in range(3))))
    found = {name for name, s in substitutions().items() if list(places(program, s))}
    assert found == {"parallel products", "stacked products", "sum of products"}


def test_a_proof_sees_what_is_rounded_or_overflows_that_was_not_before() -> None:
    """Both are right in exact arithmetic: a sum of operands instead of one of products, in the operands' own type."""
    distributed = lookup("product of a sum")
    for narrow, wide in ((np.int8, np.int32), (jnp.bfloat16, np.float32)):

        def instance(random: Any, narrow: Any = narrow, wide: Any = wide) -> Any:
            def f(x: Any, a: Any, b: Any) -> Any:
                return jnp.matmul(x, a, preferred_element_type=wide) + jnp.matmul(x, b, preferred_element_type=wide)

            return f, [jax.ShapeDtypeStruct((4, 4), narrow)] * 3

        def change(scope: Any, site: Any, wide: Any = wide) -> Change:
            total, first, second = site
            reads = (first.ins[0], first.ins[1], second.ins[1])
            return Change(
                reads, total.outs, lambda x, a, b: [jnp.matmul(x, lax.add(a, b), preferred_element_type=wide)]
            )

        with pytest.raises(Disproved, match="is wrong"):
            prove(replace(distributed, change=change, instance=instance), instances=3)


def test_operands_whose_parts_have_other_precisions_do_not_change_places() -> None:
    uneven = lax.DotAlgorithm(
        lhs_precision_type=np.float16, rhs_precision_type=np.float32, accumulation_type=np.float32,
        lhs_component_count=1, rhs_component_count=1, num_primitive_operations=1, allow_imprecise_accumulation=False,
    )  # fmt: skip
    for precision in (uneven, (lax.Precision.HIGHEST, lax.Precision.DEFAULT)):

        def f(x: Any, a: Any, precision: Any = precision) -> Any:
            return lax.dot_general(x, a, (((1,), (0,)), ((), ())), precision=precision).T

        assert fits(f, (2, 3), (3, 4)) == {}


def attention(w: Arrays, x: Any) -> Any:
    q, k, v = (x @ w[name] for name in "qkv")
    weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 8.0)
    return (weights @ v) @ w["o"]


def conv(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def inception(w: Arrays, x: Any) -> Any:
    a, b, c, d = (jax.nn.relu(conv(x, w[name])) for name in "abcd")
    return jnp.concatenate([a, conv(b, w["b3"]), conv(c, w["c5"]), d], -1)


def transposed(w: Arrays, x: Any) -> Any:
    h = jnp.tanh((w["a"].T @ x.T).T) + 1.0
    return ((h.T * 2.0).T @ w["b"]).T.T


def siamese(w: Arrays, x: Any) -> Any:
    """Both sides through the same weights, products in a wasteful order, a loop over layers."""
    left, right = (x + 1.0) @ w["a"], (x - 1.0) @ w["a"]
    both = jnp.concatenate([left, right], -1)
    left, right = jnp.split(both, 2, -1)
    y = ((left * right) @ w["b"]) @ w["b"].T[:, :1]

    def layer(h: Any, u: Any) -> Any:
        return jnp.tanh(h @ u["p"] + h @ u["q"]), h @ u["p"][:, :2]

    h, stacked = lax.scan(layer, x, w["layers"])
    return y.sum() + h @ w["a"], stacked


def train(f: Callable[..., Any]) -> Callable[..., Any]:
    def step(w: Arrays, x: Any) -> tuple[Arrays, Any]:
        def loss(w: Arrays) -> Any:
            return sum(jnp.mean(y**2) for y in jax.tree.leaves(f(w, x)))

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value

    return step


SHAPES: dict[str, tuple[Callable[..., Any], Any, tuple[int, ...]]] = {
    "attention": (attention, dict.fromkeys("qkvo", (16, 16)), (8, 4, 16)),
    "inception": (
        inception,
        {
            "a": (1, 1, 4, 8),
            "b": (1, 1, 4, 3),
            "c": (1, 1, 4, 2),
            "d": (1, 1, 4, 4),
            "b3": (3, 3, 3, 4),
            "c5": (5, 5, 2, 4),
        },
        (8, 5, 5, 4),
    ),
    "transposed": (transposed, {"a": (8, 16), "b": (16, 8)}, (16, 8)),
    "siamese": (siamese, {"a": (8, 8), "b": (8, 8), "layers": {"p": (3, 8, 8), "q": (3, 8, 8)}}, (16, 8)),
}


def arrays(shapes: Any, dtype: Any) -> Any:
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: (random.normal(size=s) / 3).astype(dtype), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


def compare(ours: Any, expected: Any, tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        size = float(np.abs(np.asarray(b, np.float64)).max(initial=0.0)) + 1e-3
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=tolerance * size)


def block(w: Arrays, x: Any) -> Any:
    """Many substitutions fit here."""
    left, right = (x @ w["a"]).T, x @ w["b"]
    both = lax.concatenate([lax.concatenate([right, right * 2.0], 1), left.T], 1)
    y = (jnp.tanh(left) * 2.0).T + right @ w["a"] + x @ w["b"]
    return y + both[:, 2:6], (both @ w["tall"]) @ w["tall"].T[:, :1]


def test_every_site_alone_leaves_a_programs_numbers() -> None:
    random = np.random.default_rng(0)
    shapes = {"a": (4, 4), "b": (4, 4), "tall": (12, 9)}, (5, 4)
    closed = jax.make_jaxpr(lambda w, x: block(w, x))(*map(shapes_of, shapes))
    program = build(closed)
    inputs = [random.normal(size=op.outs[0].shape) for op in program.input_ops]
    expected, applied = evaluate(program, inputs), set()
    for name, substitution in substitutions().items():
        for _, site in list(places(program, substitution)):
            changed, _ = apply(program, substitution, [tuple(op.index for op in site)])
            for x, y in zip(evaluate(changed, inputs), expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
            applied.add(name)
    assert len(applied) >= 8, applied


@pytest.mark.parametrize("is_wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("trained", [False, True], ids=["forward", "trained"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_rewritten_step_gives_the_same_numbers(
    name: str, trained: bool, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner is made to take the program after as many substitutions as there are."""
    from sbp_jax.planner import rewrite

    f, shapes, batch = SHAPES[name]
    g = train(f) if trained else f
    monkeypatch.setattr(rewrite, "_SAVED", -np.inf)
    monkeypatch.setattr(rewrite, "_greedy_seconds", lambda program, request: liked(program))
    with jax.enable_x64(is_wide):
        dtype = np.float64 if is_wide else np.float32
        w, x = arrays(shapes, dtype), arrays(batch, dtype)
        where = sbp.placement("cpu", np.arange(8).reshape(2, 4), ("a", "b"))
        config = sbp.AutoParallelConfig(rewrite="taso", rewrite_options={"steps": 12}, effort="quick")
        step = sbp.auto_parallel(g, placement=where, config=config)
        ours, expected = step(w, x), jax.jit(g)(w, x)
        compare(ours, expected, 1e-12 if is_wide else 2e-5)
        assert step.plan(w, x).rewritten is not None


def liked(program: Program) -> float:
    """Of programs the one with the most concatenations and the fewest transposes costs least."""
    names = [op.name for op in program.nodes]
    return 1.001 ** (100 * names.count("transpose") - 50 * names.count("concatenate") + len(names))


def forced(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options with which the planner takes another program wherever there is one."""
    from sbp_jax.planner import rewrite

    monkeypatch.setattr(rewrite, "_SAVED", -np.inf)
    monkeypatch.setattr(rewrite, "_greedy_seconds", lambda program, request: liked(program))
    return {"rewrite": "taso", "rewrite_options": {"steps": 6}, "effort": "quick"}


MESH = sbp.placement("cpu", np.arange(8).reshape(2, 4), ("a", "b"))


@pytest.mark.parametrize("what", ["zero 1", "zero 3", "auto", "explicit"])
def test_a_rewritten_step_beside_other_options(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO's stages, a mesh shape that is chosen, explicit mesh axes with pins on what is rewritten."""
    options, where, step = forced(monkeypatch), MESH, train(attention)
    if what.startswith("zero"):
        options["zero_stage"] = int(what[-1])
    if what == "explicit":

        def pinned(w: Arrays, x: Any) -> Any:
            x = jax.sharding.reshard(x, P("a", None, None))
            return attention(w, x)

        step = train(pinned)
    w, x = arrays(dict.fromkeys("qkvo", (16, 16)), np.float32), arrays((8, 4, 16), np.float32)
    axis_type = AxisType.Explicit if what == "explicit" else AxisType.Auto
    with jax.set_mesh(jax.make_mesh((2, 4), ("a", "b"), axis_types=(axis_type,) * 2)):
        expected = jax.jit(step)(w, x)
        ours = sbp.auto_parallel(
            step, placement="auto" if what == "auto" else where, donate_argnums=0,
            config=sbp.AutoParallelConfig(**options),
        )  # fmt: skip
        plan = ours.plan(w, x)
        compare(ours(jax.tree.map(jnp.array, w), x), expected, 2e-5)
    assert plan.rewritten is not None
    if what == "zero 3":
        weights = [x.signature for x in plan.inputs if x.path.startswith("0/")]
        assert len(weights) == 4 and all(isinstance(s[0], sbp.signature.Split) for s in weights), weights


ABSTRACT = sbp.placement.abstract((8,), cluster="a100-80")


def shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, np.float32), tree, is_leaf=lambda x: isinstance(x, tuple))


LARGE = (
    {"a": (1, 1, 192, 64), "b": (1, 1, 192, 96), "c": (1, 1, 192, 16), "d": (1, 1, 192, 32), "b3": (3, 3, 96, 128),
     "c5": (5, 5, 16, 32)},
    (128, 28, 28, 192),
)  # fmt: skip


def planned(
    f: Callable[..., Any], shapes: Any, batch: Any, where: sbp.Placement = ABSTRACT, **options: Any
) -> sbp.Plan:
    given = {k: options.pop(k) for k in ("donate_argnums", "in_sbp") if k in options}
    config = sbp.AutoParallelConfig(**options)
    return sbp.plan(f, shapes_of(shapes), shapes_of(batch), placement=where, config=config, **given)


@pytest.mark.parametrize("overlap", [False, True])
def test_taso_lowers_the_cost_of_inceptions_block(overlap: bool) -> None:
    before = planned(inception, *LARGE, overlap=overlap)
    after = planned(inception, *LARGE, overlap=overlap, rewrite="taso")
    assert after.objective < 0.9 * before.objective
    (note,) = [n for n in after.notes if n.startswith("rewrite")]
    assert re.search(
        r"1 x parallel convolutions in test_rewriting.py:\d+ \(conv\): [\d.]+ .s -> [\d.]+ .s, \d+ programs", note
    )
    assert after.fingerprint == before.fingerprint and before.rewritten is None and after.rewritten is not None
    again = planned(inception, *LARGE, overlap=overlap, rewrite="taso")
    assert again.rewritten == after.rewritten and again.objective == after.objective
    assert after.statistics["programs_priced"] <= 60
    one = planned(inception, *LARGE, overlap=overlap, rewrite="taso", rewrite_options={"steps": 1})
    assert one.rewritten is None and one.objective == before.objective


def test_a_program_is_rewritten_only_where_its_simulated_step_is_shorter() -> None:
    """On hardware that overlaps: fused products of a training step save compute, and leave less to hide behind."""
    shapes, batch = dict.fromkeys("qkvo", (512, 512)), (64, 256, 512)
    where = sbp.placement.abstract((8,), cluster="h100")
    steps = {"steps": 6}
    plain, after, summed = (
        planned(train(attention), shapes, batch, where, donate_argnums=0, **options)
        for options in (
            {}, {"rewrite": "taso", "rewrite_options": steps},
            {"rewrite": "taso", "rewrite_options": steps, "overlap": False},
        )
    )  # fmt: skip
    assert summed.rewritten is not None
    assert after.simulate().step_seconds <= plain.simulate().step_seconds * (1 + 1e-9)
    told = any("no program with a shorter simulated step" in n for n in after.notes)
    assert told == (after.rewritten is None) and after.statistics["programs_priced"] == 6


def test_a_time_limit_ends_the_search_among_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every price takes what is left of the clock: the first one is the last."""
    from sbp_jax.planner import rewrite

    clock = [0.0]

    def slow(program: Program, request: Any) -> float:
        clock[0] += 100.0
        return float(len(program.nodes))

    monkeypatch.setattr(rewrite, "_greedy_seconds", slow)
    program = program_of(inception_of_arrays, (8, 5, 5, 4), *((1, 1, 4, n) for n in (8, 3, 2)))
    request = Request(ABSTRACT, sbp.cluster.resolve("a100-80", "cpu", True), time_limit=50.0, rewrite="taso",
                      budget=Budget(seconds=50.0, clock=lambda: clock[0]))  # fmt: skip
    plan = plan_or_rewrite(program, request)
    assert plan.statistics["programs_priced"] == 1
    assert any(n.endswith("among 1 priced, when half of what was left of time_limit was over") for n in plan.notes)


def inception_of_arrays(x: Any, *kernels: Any) -> Any:
    return jnp.concatenate([conv(x, k) for k in kernels], -1)


def test_it_is_off_by_default_and_leaves_what_it_cannot_better() -> None:
    assert sbp.AutoParallelConfig().rewrite is None
    plan = planned(inception, *LARGE)
    assert plan.rewritten is None and not any("rewrite" in n for n in plan.notes)
    w, x = {"a": (64, 64)}, (64, 64)
    plain, asked = (planned(lambda w, x: jnp.tanh(x @ w["a"]), w, x, rewrite=name) for name in (None, "taso"))
    assert asked.rewritten is None and asked.objective == plain.objective
    assert any(n.startswith("rewrite: no program that is cheaper was found") for n in asked.notes)


def test_what_the_search_likes_is_taken_only_where_its_plan_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greedy prices of candidates say so, their plans do not: transposes cost nothing here."""
    from sbp_jax.planner import rewrite

    _, shapes, batch = SHAPES["transposed"]
    plain = planned(transposed, shapes, batch, overlap=False)
    monkeypatch.setattr(rewrite, "_greedy_seconds", lambda program, request: liked(program))
    asked = planned(transposed, shapes, batch, overlap=False, rewrite="taso", rewrite_options={"steps": 8})
    assert asked.rewritten is None and asked.objective == plain.objective
    assert any(n.startswith("rewrite: no program that is cheaper was found among 8") for n in asked.notes)


@pytest.mark.parametrize("pin", ["B", "S(0)", "S(1)"])
def test_pins_are_kept(pin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product whose result is pinned is cut out of the fused one, and pinned as it was; so are arguments, results."""
    from sbp_jax.planner import rewrite

    def f(w: Arrays, x: Any) -> Any:
        a = sbp.to_global(x @ w["a"], sbp=pin)
        return a * 2.0, x @ w["b"]

    monkeypatch.setattr(rewrite, "_SAVED", -np.inf)
    monkeypatch.setattr(rewrite, "_greedy_seconds", lambda program, request: liked(program))
    shapes, batch = {"a": (512, 64), "b": (512, 64)}, (8192, 512)
    config = sbp.AutoParallelConfig(rewrite="taso", overlap=False)
    plan = sbp.plan(
        f, shapes_of(shapes), shapes_of(batch), placement=ABSTRACT, config=config,
        in_sbp=({"a": "S(1)", "b": None}, "S(0)"), out_sbp=(None, "S(1)"),
    )  # fmt: skip
    assert plan.rewritten is not None
    inputs = {x.path: str(x.signature) for x in plan.inputs}
    assert (inputs["0/a"], inputs["1"]) == ("S(1)", "S(0)") and str(plan.outputs[1].signature) == "S(1)"
    program, _ = follow(build(jax.make_jaxpr(f)(shapes_of(shapes), shapes_of(batch))), plan.rewritten)
    (pinned,) = [op.index for op in program.nodes if op.name == "sbp.pin"]
    assert str(plan.strategies[plan.nodes[pinned]][1][0]) == pin


def test_a_rewritten_plan_is_saved_loaded_cached_and_given(tmp_path: Any) -> None:
    where = sbp.placement("cpu", np.arange(8), ("a",))
    f, shapes, batch = SHAPES["attention"]
    config = sbp.AutoParallelConfig(rewrite="taso", cluster="a100-80", cache=tmp_path / "cache")
    w, x = arrays(dict.fromkeys("qkvo", (128, 128)), np.float32), arrays((64, 64, 128), np.float32)
    del shapes, batch
    step = sbp.auto_parallel(f, placement=where, config=config)
    plan = step.plan(w, x)
    assert plan.rewritten is not None and plan.verify()
    expected = jax.jit(f)(w, x)
    compare(step(w, x), expected, 1e-4)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    assert loaded.rewritten == plan.rewritten
    compare(sbp.auto_parallel(f, placement=where, plan=loaded)(w, x), expected, 1e-4)
    again = sbp.auto_parallel(f, placement=where, config=config).plan(w, x)
    assert again.statistics.get("from_cache") == 1.0 and again.rewritten == plan.rewritten
    broken = replace(loaded, rewritten=replace(plan.rewritten, fingerprint="0"))
    with pytest.raises(sbp.PlanError, match="lead to another program"):
        sbp.auto_parallel(f, placement=where, plan=broken)(w, x)
    gspmd = sbp.AutoParallelConfig(rewrite="taso", cluster="a100-80", lowering="gspmd")
    compare(sbp.auto_parallel(f, placement=where, config=gspmd)(w, x), expected, 1e-4)


def program_of(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    return build(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes)))


def fits(f: Callable[..., Any], *shapes: tuple[int, ...]) -> dict[str, int]:
    program = program_of(f, *shapes)
    found = {name: len(list(places(program, s))) for name, s in substitutions().items()}
    return {name: n for name, n in found.items() if n}


def test_what_is_not_alike_is_left_alone() -> None:
    assert fits(lambda x, a, b: (x @ a, (x.astype(np.float16) @ b.astype(np.float16))), (4, 4), (4, 4), (4, 4)) == {}
    high = lax.Precision.HIGHEST
    assert fits(lambda x, a, b: (x @ a, jnp.matmul(x, b, precision=high)), (4, 4), (4, 4), (4, 4)) == {}
    assert "order of products" in fits(lambda x, a, b: (x @ a) @ b, (8, 2), (2, 8), (8, 2))
    assert fits(lambda x, a, b: jnp.matmul(x @ a, b, precision=high), (8, 2), (2, 8), (8, 2)) == {}

    def strided(x: Any, k: Any, m: Any) -> Any:
        return lax.conv(x, k, (1, 1), "VALID"), lax.conv(x, m, (2, 2), "VALID")

    assert fits(strided, (1, 2, 5, 5), (3, 2, 1, 1), (3, 2, 1, 1)) == {}

    def windows(x: Any, k: Any, m: Any) -> Any:
        return lax.conv(x, k, (1, 1), "VALID"), lax.conv(x, m, (1, 1), "VALID")

    assert fits(windows, (1, 2, 5, 5), (3, 2, 1, 1), (3, 2, 3, 3)) == {}
    assert "parallel convolutions" in fits(windows, (1, 2, 5, 5), (3, 2, 1, 1), (4, 2, 1, 1))

    def grouped(x: Any, k: Any, m: Any) -> Any:
        return tuple(lax.conv_general_dilated(x, y, (1, 1), "VALID", feature_group_count=2) for y in (k, m))

    assert fits(grouped, (1, 2, 5, 5), (4, 1, 1, 1), (4, 1, 1, 1)) == {}
    assert fits(lambda x, y: lax.concatenate([x[2:], x[:2], y], 0), (4,), (4,)) == {}
    assert fits(lambda x, a, b: (x @ a) @ b, (2, 4), (4, 8), (8, 4)) == {}, "in that order it is the cheapest"
    assert fits(lambda x, a, b: (x @ a, (x + 1.0) @ b), (4, 4), (4, 4), (4, 4)) == {}


def test_products_that_wait_for_each_other_are_not_put_together() -> None:
    program = program_of(lambda x, a: x @ jnp.tanh(x @ a), (4, 4), (4, 4))
    parallel = lookup("parallel products")
    sites = [tuple(op.index for op in site) for _, site in places(program, parallel)]
    assert sites
    with pytest.raises(NoMatch, match="depends on each other"):
        apply(program, parallel, sites)
    found = taso(program, lambda p, origin: float(len(p.nodes)), {"steps": 5, "alpha": 2.0})
    assert found.moves == ()


def test_effects_stay_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any, a: Any, b: Any) -> Any:
        y = x @ a
        jax.debug.print("first {}", y[0, 0], ordered=True)
        z = x @ b
        jax.debug.print("second {}", z[0, 0], ordered=True)
        return y + z

    program = program_of(f, (4, 4), (4, 4), (4, 4))
    parallel = lookup("parallel products")
    ((_, site),) = list(places(program, parallel))
    changed, _ = apply(program, parallel, [tuple(op.index for op in site)])
    kept = [[op.params["once"].params["fmt"] for op in p.nodes if op.has_effect] for p in (program, changed)]
    assert kept[0] == kept[1] and len(kept[0]) == 2

    def waits(x: Any, a: Any, b: Any) -> Any:
        """Both products are computed when ``b`` is there, so the first print waits; the second does not overtake it."""
        y = x @ a
        jax.debug.print("first {}", y[0, 0], ordered=True)
        jax.debug.print("second {}", x[0, 0], ordered=True)
        return y + x @ jnp.tanh(b)

    program = program_of(waits, (4, 4), (4, 4), (4, 4))
    ((_, site),) = list(places(program, parallel))
    changed, _ = apply(program, parallel, [tuple(op.index for op in site)])
    kept = [[op.params["once"].params["fmt"] for op in p.nodes if op.has_effect] for p in (program, changed)]
    assert kept[0] == kept[1] and len(kept[0]) == 2
    with pytest.raises(NoMatch, match="to one node twice"):
        apply(program, parallel, [tuple(op.index for op in site)] * 2)


def test_moves_are_replayed_or_refused() -> None:
    program = program_of(lambda x, a, b, c: (x @ a, x @ b, x @ c), (4, 4), (4, 4), (4, 2), (4, 3))
    found = taso(
        program, lambda p, origin: sum(op.name == "dot_general" for op in p.nodes), {"steps": 20, "alpha": 1.05}
    )
    assert found.seconds == 1 and found.before == 3
    made, origin = replay(program, found.moves, fingerprint(found.program))
    assert fingerprint(made) == fingerprint(found.program) and list(origin) == list(found.origin)
    assert [origin[op.index] for op in made.input_ops] == [op.index for op in program.input_ops]
    with pytest.raises(NoMatch, match="to arguments, results or boundaries"):
        replay(program, [Move("parallel products", ((0, 1),))])
    with pytest.raises(NoMatch, match="does not fit at node"):
        replay(program, [Move("merged concatenations", ((4,),))])
    with pytest.raises(NoMatch, match="nodes that the program does not have"):
        replay(program, [Move("parallel products", ((4, 500),))])
    with pytest.raises(sbp.PlanError, match=r"substitution 'x' is not known; possible: 'parallel products'"):
        replay(program, [Move("x", ())])


def test_bad_input_is_told_in_words() -> None:
    def config(**given: Any) -> Any:
        return sbp.AutoParallelConfig(**given)

    with pytest.raises(sbp.PlanError, match=r"'tasso' is not known; did you mean 'taso'\? Possible: 'taso'"):
        config(rewrite="tasso")
    with pytest.raises(sbp.PlanError, match=r"'ilp' decides the signature of every value.*solver='ilp'"):
        config(rewrite="ilp")
    with pytest.raises(sbp.PlanError, match=r"'taso' decides the graph itself.*rewrite='taso'"):
        config(solver="taso")
    with pytest.raises(sbp.PlanError, match=r"steps=0 of .*'taso'.*at least 1"):
        config(rewrite="taso", rewrite_options={"steps": 0})
    with pytest.raises(sbp.PlanError, match=r"alpha=0.5 of .*'taso'"):
        config(rewrite="taso", rewrite_options={"alpha": 0.5})
    with pytest.raises(sbp.PlanError, match="rewrite_options is a dict"):
        config(rewrite="taso", rewrite_options=3)
    with pytest.raises(sbp.PlanError, match="name it with rewrite='taso'"):
        config(rewrite_options={"steps": 3})
    with pytest.raises(sbp.PlanError, match="leave rewrite out with pipeline="):
        config(rewrite="taso", pipeline=sbp.Pipeline(stages=2, microbatches=2))
