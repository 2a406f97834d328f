"""What every device computes whole although it is large: in ``unruled`` and the notes, with line and reason."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import sbp_jax as sbp

ABSTRACT = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="h100")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plan(f: Callable[..., Any], *args: Any, **options: Any) -> sbp.Plan:
    return sbp.plan(f, *args, placement=options.pop("placement", ABSTRACT), **options)


mystery_p = Primitive("mystery of repeated")
mystery_p.def_impl(lambda x: x)
mystery_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(mystery_p, mlir.lower_fun(lambda x: x, multiple_results=False))


def foreign(x: jax.Array) -> jax.Array:
    return jax.ffi.ffi_call("somewhere", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


WHOLE: dict[str, tuple[Callable[..., Any], tuple[int, ...], str, str]] = {
    "svd": (lambda x: jnp.linalg.svd(x), (64, 64), "svd", "its rule splits no dim of 64x64 (a m n -> a m n: no entry"),
    "eigvals": (lambda x: jnp.linalg.eigvals(x), (64, 64), "eig", "its rule splits no dim of 64x64"),
    "eigh": (lambda x: jnp.linalg.eigh(x), (64, 64), "eigh", "its rule splits no dim of 64x64"),
    "callback": (lambda x: jax.pure_callback(np.sin, x, x), (8, 64), "pure_callback", "one device runs it, once"),
    "custom call": (foreign, (8, 64), "ffi_call", "its body is code this library does not read"),
    "no rule": (lambda x: mystery_p.bind(x), (8, 64), "mystery of repeated", "no rule for it"),
    "one long row": (lambda x: jnp.sort(x) * 2, (2**20,), "sort", "its rule splits no dim of 1048576"),
    "sizes": (lambda x: jnp.linalg.svd(x), (6, 64, 64), "svd", "no dim that its rule splits (6) is a multiple of "),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_what_is_whole_is_named_with_line_and_reason(case: str) -> None:
    f, shape, primitive, reason = WHOLE[case]
    where = sbp.placement.abstract((4, 4), axis_names=("dp", "tp"), cluster="h100")
    p = plan(f, f32(*shape), placement=where)
    assert [name for name, _ in p.unruled] == [primitive]
    said = p.unruled[0][1]
    assert "test_repeated.py:" in said and reason in said
    note = next(n for n in p.notes if reason in n or f"no rule for {primitive}" in n)
    assert primitive in note and "test_repeated.py:" in note
    assert note in " ".join(str(p).split()) or primitive in str(p)
    assert primitive in p._repr_html_()
    assert sbp.Plan.from_json(p.to_json()).unruled == p.unruled


def test_the_rule_is_the_reason_that_nothing_is_split() -> None:
    (first, *_) = plan(lambda x: jnp.linalg.svd(x), f32(4096, 4096)).notes
    assert first.startswith("nothing is split: every one of the 8 devices computes the whole step. The rules are")
    assert "the reason, not the price: svd cannot be split here" in first and "cheapest" not in first


def test_what_could_be_split_is_whole_for_its_price() -> None:
    (note,) = plan(lambda x: x * 2, f32(8, 8), in_sbp="B, B", out_sbp="B, B").notes
    assert "nothing is split" in note and "That is the cheapest, given the pins: " in note


def test_what_a_strategy_keeps_whole_is_not_said_to_be_cheaper_so() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        loss, slope = jax.value_and_grad(lambda w: jnp.tanh(x @ w).sum())(w)
        return w - 0.01 * slope / (1 + jnp.abs(slope)), loss

    asked = sbp.AutoParallelConfig(solver="data_parallel")
    where = sbp.placement.abstract((8,), cluster="h100")
    shapes = f32(1024, 1024), f32(64, 1024)
    p = sbp.plan(step, *shapes, placement=where, donate_argnums=0, config=asked)
    (note,) = [n for n in p.notes if "computes whole" in n]
    assert "than it saves, given solver='data_parallel' (share" in note
    free = sbp.plan(step, *shapes, placement=where, donate_argnums=0)
    assert not any("computes whole" in n for n in free.notes) and free.step_seconds < p.step_seconds


def test_in_a_loop_every_run_counts() -> None:
    """Once is little of the step, many times are much."""

    def with_sorts(trips: int) -> Callable[..., Any]:
        def f(row: jax.Array, x: jax.Array, w: jax.Array) -> Any:
            row, _ = jax.lax.scan(lambda r, _: (jnp.sort(-r), None), row, None, length=trips)
            for _ in range(4):
                x = jnp.tanh(x @ w)
            return row, x

        return f

    args = f32(2**21), f32(2**17, 4096), f32(4096, 4096)
    once, often = (plan(with_sorts(n), *args) for n in (1, 4096))
    assert not [n for n, _ in once.unruled if n == "sort"]
    assert [n for n, _ in often.unruled if n == "sort"] == ["sort"]
    assert any("every device computes sort whole, " in n and "% of its compute" in n for n in often.notes)


def test_what_is_split_or_small_is_not_named() -> None:
    def f(x: jax.Array, w: jax.Array, key: jax.Array) -> Any:
        jax.debug.print("sum {}", x.sum())
        drop = jax.random.bernoulli(key, 0.5, x.shape)
        return (
            jnp.where(drop, jnp.tanh(x @ w), 0),
            jnp.linalg.svd(w[:8, :8])[1],
            jnp.linalg.cholesky(x[:, :1, None] + 1),
        )

    p = plan(f, f32(2**14, 4096), f32(4096, 4096), jax.eval_shape(lambda: jax.random.key(0)))
    assert p.unruled == [] and p.notes == []


def test_one_device_repeats_nothing() -> None:
    p = plan(lambda x: jnp.linalg.svd(x), f32(64, 64), placement=sbp.placement.abstract((1,), cluster="h100"))
    assert p.unruled == [] and p.notes == []


def unknown(name: str) -> Primitive:
    made = Primitive(name)
    made.def_impl(lambda x: x)
    made.def_abstract_eval(lambda x: x)
    mlir.register_lowering(made, mlir.lower_fun(lambda x: x, multiple_results=False))
    return made


FOREIGN = [unknown(f"foreign_{k}") for k in range(12)]


def through(primitives: list[Primitive]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        for primitive in primitives:
            x = primitive.bind(jnp.tanh(x @ w))
        return FOREIGN[0].bind(x)

    return f


def test_many_primitives_without_a_rule_are_one_note() -> None:
    p = plan(through(FOREIGN), f32(4096, 4096), f32(4096, 4096))
    (note,) = [n for n in p.notes if "no rule" in n]
    assert "no rule for 12 primitives: foreign_0 (2 lines), foreign_1 (1 line), " in note
    assert all(x.name in note for x in FOREIGN) and len(p.unruled) == 13
    sent = float(note.partition(" and sends ")[2].split()[0])
    assert 0 < sent * 2**20 <= p.bytes_on_wire * 1.001


def test_few_primitives_without_a_rule_have_a_note_each() -> None:
    p = plan(through(FOREIGN[:2]), f32(4096, 4096), f32(4096, 4096))
    found = [n for n in p.notes if n.startswith("no rule for foreign_")]
    assert len(found) == 2 and found[0].count("test_repeated.py:") == 2, found
