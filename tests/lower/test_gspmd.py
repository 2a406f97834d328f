"""``lowering="gspmd"``: the plan as sharding constraints. Numbers equal one device's; partial values stay explicit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp
from sbp_jax.lower.verify import Report

WHERE = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
LINE = sbp.placement("cpu", np.arange(8), axis_names=("dp",))
GSPMD = sbp.AutoParallelConfig(lowering="gspmd")
RNG = np.random.default_rng(0)
X, W, V = (RNG.normal(size=s).astype(np.float32) for s in ((16, 32), (32, 64), (64, 32)))
KEYS = RNG.integers(0, 64, size=(16,)).astype(np.int32)


def check(fn: Callable[..., Any], *args: Any, **options: Any) -> sbp.Plan:
    """The plan of ``fn`` with these pins, run both ways: results equal one device's."""
    step = sbp.auto_parallel(fn, **{"placement": WHERE, "config": GSPMD, **options})
    found, expected = step(*args), jax.jit(fn)(*args)
    for ours, plain in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.shape == plain.shape and ours.dtype == plain.dtype
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)
    plan = step.plan(*args)
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(plan.shardings()[1]), strict=True)
    assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in leaves)
    return plan


def kinds(plan: sbp.Plan) -> set[str]:
    return {move.kind for boxing in plan.boxings() for move in boxing.moves}


def test_partial_values_of_a_product_pass_what_is_linear() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = sbp.to_global(jnp.transpose(-(x @ w) * 3.0), sbp="B, P")
        return y.sum(0), y + 1

    plan = check(fn, X, W, in_sbp=("B, S(1)", None), out_sbp=("B, B", "S(1), S(0)"))
    assert {str(b.src) for b in plan.boxings() if b.src.has_partial} >= {"B, P"}
    check(fn, X, W, in_sbp=("S(0), S(1)", None))


def test_partial_values_carried_and_collected_by_a_loop() -> None:
    def fn(x: Any) -> Any:  # gradients of micro-batches are added up, and reduced once, after the loop
        def body(total: Any, piece: Any) -> Any:
            term = sbp.to_global(piece.T @ piece, sbp="P")
            return sbp.to_global(total + term, sbp="P"), term

        total, all_of_them = lax.scan(body, jnp.zeros((32, 32)), x.reshape(4, 16, 32))
        again, _ = lax.scan(lambda c, x: (c + x, None), jnp.zeros((32, 32)), sbp.to_global(all_of_them, sbp="P"))
        return total, all_of_them.sum(0), again

    plan = check(fn, np.tile(X, (4, 1)), placement=LINE)
    reduced = [b for b in plan.boxings() if b.src.has_partial]
    assert reduced and all(b.times == 1 for b in reduced)


def test_a_value_made_partial() -> None:
    check(lambda x: (sbp.to_global(x * 2, sbp="P, S(0)") + 1, sbp.to_global(2.0 * x[0, 0], sbp="P, P(max)")), X)


def test_conditionals_and_while_loops() -> None:
    def fn(x: Any, w: Any, n: Any) -> Any:
        y = lax.cond(n > 1, lambda: x @ w, lambda: jnp.zeros((16, 64)))
        z = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2 + x @ w), (0, y))
        return z[1].sum(0), z[0]

    for n in (0, 3):
        check(fn, X, W, np.int32(n), in_sbp=("S(0), S(1)", "B, S(0)", None))


def test_lookups_in_a_split_table_and_scatters() -> None:
    def fn(table: Any, keys: Any) -> Any:
        rows = table[keys]
        return rows, table.at[keys].add(1.0), table.at[keys].max(2 * rows), jnp.take_along_axis(table, keys[:, None], 1)

    table = RNG.normal(size=(64, 64)).astype(np.float32)[:, :]
    check(lambda t, k: fn(t[:16], k % 16), table, KEYS, in_sbp=("B, S(0)", "S(0), B"))
    check(fn, table[:16, :], KEYS % 16, in_sbp=("S(0), B", None))


def test_extremes_are_partial_too() -> None:
    def fn(x: Any) -> Any:
        return sbp.to_global(x.max(0), sbp="P(max), S(0)") * 2, x.min(), jnp.argmax(x, 0)

    plan = check(fn, X, in_sbp=("S(0), S(1)",), out_sbp=("S(0), S(0)", None, None))
    assert any("P(max)" in str(b.src) for b in plan.boxings())


def test_random_bits_keys_and_arrays_without_elements() -> None:
    def fn(key: Any, x: Any, empty: Any) -> Any:
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape) * jax.random.bernoulli(second, 0.5, x.shape)
        return x + noise, second, empty * 2, jnp.arange(16.0) + x.sum()

    check(fn, jax.random.key(3), X, np.zeros((8, 0), np.float32), in_sbp=(None, "S(0), S(1)", "S(0), B"))


def test_layers_made_again_keep_their_barriers() -> None:
    def fn(w: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return jax.checkpoint(lambda h: jnp.tanh(h @ w) @ w.T)(h), None

        return jax.value_and_grad(lambda w: jnp.square(lax.scan(layer, x, w)[0]).mean())(w)

    check(fn, np.stack([W, W]) / 8, X, in_sbp=("B, S(2)", "S(0), B"))


def test_a_users_kernel_runs_on_pieces() -> None:
    seen = []

    @sbp.register_rule("b k, k n -> b n", reduced={"k": "sum"}, linear=(0, 1))
    def kernel(x: Any, w: Any) -> Any:
        seen.append((x.shape, w.shape))
        return x @ w

    check(lambda x, w: kernel(x, w) * 2, X, W, in_sbp=("S(0), B", "B, S(1)"))
    assert ((8, 32), (32, 16)) in seen


def test_prints_are_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum().round())
        return x * 2

    sbp.auto_parallel(fn, config=GSPMD, placement=WHERE, in_sbp=("S(0), S(1)",))(X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum") == 1


def test_donated_state_is_updated_in_place() -> None:
    def train(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: jnp.square(jnp.tanh(x @ w["a"]) @ w["b"] - x).mean())(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

    step = sbp.auto_parallel(train, placement=WHERE, donate_argnums=0, config=GSPMD)
    state, expected = {"a": W, "b": V}, {"a": W, "b": V}
    state, _ = step(state, X)
    before, first = state, jax.tree.map(lambda x: x.sharding, state)
    state, loss = step(state, X)
    for _ in range(2):
        expected, wanted = jax.jit(train)(expected, X)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert jax.tree.map(lambda x: x.sharding, state) == first
    assert before["a"].is_deleted() and step.lower(state, X).compile().memory_analysis().alias_size_in_bytes > 0


def test_inside_of_jit_and_of_grad() -> None:
    inner = sbp.auto_parallel(lambda x, w: jnp.tanh(x @ w), placement=WHERE, config=GSPMD, in_sbp=("B, S(1)", None))
    gradient = jax.jit(jax.grad(lambda w: inner(X, w).sum()))(W)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.tanh(X @ w).sum())(W), rtol=1e-4, atol=1e-4)


def test_a_plan_remembers_its_lowering_and_runs_in_either(tmp_path: Path) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (x @ w).sum(0)

    step = sbp.auto_parallel(fn, config=GSPMD, placement=WHERE, in_sbp=("S(0), S(1)", None))
    plan = step.plan(X, W)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    assert (
        loaded.lowering == "gspmd"
        and "lowering is gspmd" in str(loaded)
        and "lowering is gspmd" in loaded._repr_html_()
    )
    again = sbp.auto_parallel(fn, plan=loaded)
    manual = sbp.auto_parallel(fn, plan=loaded, config=sbp.AutoParallelConfig())
    assert (again.plan(X, W).lowering, manual.plan(X, W).lowering) == ("gspmd", "manual")
    assert "lowering" not in str(manual.plan(X, W))
    text = [s.lower(X, W).as_text() for s in (again, manual)]
    assert "sharding_constraint" in text[0] and "sharding_constraint" not in text[1]
    for s in (again, manual):
        np.testing.assert_allclose(s(X, W), fn(X, W), rtol=1e-4, atol=1e-4)


def test_verify_reports_what_the_partitioner_chose() -> None:
    def fn(x: Any) -> Any:
        return jnp.sin(x) * 2

    step = sbp.auto_parallel(fn, placement=WHERE, config=GSPMD, in_sbp=("S(0), S(1)",))
    plan = step.plan(X)
    other = jax.jit(lambda x: x.sum(), in_shardings=plan.shardings()[0]).lower(X).compile()
    report = plan.verify(other)
    assert isinstance(report, Report) and report.added and not report.ok
    assert "lowering is gspmd" in str(report) and "added by XLA" in str(report)
    with pytest.raises(sbp.PlanMismatch, match="added by XLA"):
        plan.verify(other, strict=True)
    manual = sbp.auto_parallel(fn, placement=WHERE, in_sbp=("S(0), S(1)",)).plan(X)
    assert not manual.verify(other, strict=False).ok
    with pytest.raises(sbp.PlanMismatch):
        manual.verify(other)
    np.testing.assert_allclose(step(X), fn(X), rtol=1e-5)


def test_an_unknown_lowering() -> None:
    with pytest.raises(sbp.PlanError, match=r"lowering is 'manual' .* or 'gspmd' .*got 'shardy'"):
        sbp.AutoParallelConfig(lowering="shardy")  # pyright: ignore[reportArgumentType]


def test_a_convolution_in_groups_keeps_the_order_of_its_channels() -> None:
    def fn(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, [1], "VALID", feature_group_count=2)

    x, k = RNG.normal(size=(1, 6, 1)).astype(np.float32), RNG.normal(size=(4, 3, 1)).astype(np.float32)
    check(fn, x, k, placement=sbp.placement("cpu", [0, 1]), in_sbp=("S(1)", "S(0)"), out_sbp="S(1)")


@pytest.mark.parametrize("at", [2, 3, 5, 8, -9])
def test_positions_out_of_bounds_are_clamped_before_the_result_is_cut(at: int) -> None:
    def fn(x: Any, at: Any) -> Any:
        sliced = lax.dynamic_slice(x, (0, at), (4, 4))
        numbers = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(1,))
        looked_up = lax.gather(x, at[None], numbers, (4, 4), mode="clip")
        return sliced, looked_up, sliced.at[:, at].add(1.0, mode="clip")

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    sliced = x[:, (start := min(at, 2) if at >= 0 else max(at + 6, 0)) : start + 4]
    clipped = x[:, (start := min(max(at, 0), 2)) : start + 4]
    added = sliced.copy()
    added[:, min(at, 3) if at >= 0 else max(at + 4, 0)] += 1  # plain jit of JAX 0.10.2 is wrong here for at = 5
    step = sbp.auto_parallel(fn, config=GSPMD, placement=sbp.placement("cpu", [0, 1]), out_sbp=("S(1)",) * 3)
    for ours, expected in zip(step(x, np.int32(at)), (sliced, clipped, added), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_way_that_leads_through_partial() -> None:
    """Three gathers of little are slower than one all-reduce of pieces among zeros."""
    where = sbp.placement("cpu", np.arange(8).reshape(2, 2, 2), axis_names=("a", "b", "c"))
    config = sbp.AutoParallelConfig(lowering="gspmd", cluster="h100")
    x = np.arange(32, dtype=np.int8).reshape(4, 8)
    plan = check(lambda x: x, x, placement=where, config=config, in_sbp="S(0), S(0), S(1)", out_sbp="B, B, B")
    assert "to_partial" in kinds(plan)
