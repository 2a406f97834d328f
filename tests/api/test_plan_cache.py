"""Plans on disk: found again without a search, by any process, for the same question only; never half an entry."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.api import function
from sbp_jax.planner import catalogue

W, X = jnp.full((16, 16), 0.1), jnp.ones((8, 16))


def place(*shape: int) -> sbp.Placement:
    size = int(np.prod(shape))
    return sbp.placement("cpu", np.arange(size).reshape(shape), axis_names=("dp", "tp")[: len(shape)])


def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * g, loss


def planned(folder: Path | str | None, fn: Any = step, where: Any = None, pins: Any = None, **options: Any) -> Any:
    config = sbp.AutoParallelConfig(cache=folder, **options)
    return sbp.auto_parallel(fn, placement=where or place(2, 4), config=config, donate_argnums=0, in_sbp=pins)


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From when it is called on, whatever searches raises."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a search was begun")

    def switch() -> None:
        monkeypatch.setattr(function, "plan_or_rewrite", refuse)
        monkeypatch.setattr(function, "make_plan", refuse)
        monkeypatch.setattr(function, "compare_with_padding", refuse)
        for name, method in list(catalogue._METHODS.items()):
            monkeypatch.setitem(catalogue._METHODS, name, replace(method, run=refuse))

    return switch


@pytest.mark.parametrize("where", [None, 8, "auto"])
def test_a_plan_is_found_again_without_a_search(tmp_path: Path, no_search: Any, where: Any) -> None:
    first = planned(tmp_path, where=where).plan(W, X)
    assert "from_cache" not in first.statistics and not any("cache" in n for n in first.notes)
    no_search()
    again = planned(tmp_path, where=where)
    plan = again.plan(W, X)
    assert plan.statistics["from_cache"] == 1 and any("from the plan cache" in n for n in plan.notes)
    assert "from the plan cache" in str(plan)
    assert plan.signatures() == first.signatures() and plan.objective == first.objective
    assert plan.boxings() == first.boxings() and plan.placement == first.placement
    np.testing.assert_allclose(again(W + 0, X)[1], step(W, X)[1], rtol=1e-5)
    assert plan.verify().ok and str(plan.explain("0")) == str(first.explain("0"))


def test_nothing_is_kept_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned(None).plan(W, X)
    assert list(tmp_path.iterdir()) == []


def test_another_question_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = [
        planned(tmp_path),
        planned(tmp_path, fn=lambda w, x: (w + 1, x)),
        planned(tmp_path, where=place(4, 2)),
        planned(tmp_path, pins=(None, "S(0), B")),
        planned(tmp_path, pins=(None, "B, S(1)")),
        planned(tmp_path, solver="greedy"),
        planned(tmp_path, memory_limit=1e9),
        planned(tmp_path, cluster="a100-80"),
        planned(tmp_path, gap=0.01),
        sbp.auto_parallel(step, placement=place(2, 4), config=sbp.AutoParallelConfig(cache=tmp_path)),
    ]
    for k, asks in enumerate(asked, 1):
        assert "from_cache" not in asks.plan(W, X).statistics, k
        assert len(list(tmp_path.iterdir())) == k
    assert "from_cache" in planned(str(tmp_path), lowering="gspmd").plan(W, X).statistics
    assert "from_cache" not in planned(tmp_path).plan(W, jnp.ones((16, 16))).statistics
    monkeypatch.setattr("sbp_jax.api.plan_cache.versions", lambda: {"jax": "another"})
    assert "from_cache" not in planned(tmp_path).plan(W, X).statistics


def entry(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def flipped(path: Path) -> None:
    text = path.read_text()
    at = text.index("nodes") + 40
    path.write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])


def other_schema(path: Path) -> None:
    from sbp_jax.api import plan_cache

    _, _, text = path.read_text().partition("\n")
    text = json.dumps({**json.loads(text), "schema": 1})
    path.write_text(f"{plan_cache._MARK} {plan_cache._checksum(text)}\n{text}")


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_text(""),
        lambda p: p.write_text(p.read_text()[:-100]),
        lambda p: p.write_bytes(b"\xff\xfe\x00 not text"),
        lambda p: p.write_text("{}"),
        flipped,
        other_schema,
    ],
    ids=["empty", "cut", "binary", "json", "one character", "schema"],
)
def test_a_damaged_entry_is_made_anew_with_a_note(tmp_path: Path, damage: Any) -> None:
    first = planned(tmp_path).plan(W, X)
    damage(entry(tmp_path))
    made = planned(tmp_path).plan(W, X)
    assert "from_cache" not in made.statistics and made.signatures() == first.signatures()
    (note,) = [n for n in made.notes if "plan cache" in n]
    assert "made anew" in note
    mended = planned(tmp_path).plan(W, X)
    assert "from_cache" in mended.statistics and not any("made anew" in n for n in mended.notes)


def test_files_are_the_users_own_and_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "plans"
    before = os.umask(0o022)
    try:
        planned(folder).plan(W, X)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(folder).stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_to_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan = planned(tmp_path / "file").plan(W, X)
    assert any("could not be" in n for n in plan.notes)
    with pytest.raises(sbp.PlanError, match="cache is a folder"):
        sbp.AutoParallelConfig(cache=3)  # pyright: ignore[reportArgumentType]


def test_an_alternative_is_explained_of_a_plan_from_the_cache(tmp_path: Path) -> None:
    first = planned(tmp_path).plan(W, X)
    plan = planned(tmp_path).plan(W, X)
    assert "from_cache" in plan.statistics
    a, b = (p.explain("1", alternative="B, S(1)").replanned for p in (first, plan))
    assert a is not None and a == b


def test_another_process_finds_it(tmp_path: Path) -> None:
    code = """
import sys, jax, jax.numpy as jnp, numpy as np, sbp_jax as sbp
def f(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)
p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
plan = sbp.plan(f, np.ones((16, 16), np.float32), np.ones((8, 16), np.float32), placement=p,
                config=sbp.AutoParallelConfig(cache=sys.argv[1]))
print(int("from_cache" in plan.statistics))
"""
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True,
                             timeout=120, check=True)  # fmt: skip
        found.append(run.stdout.strip())
    assert found == ["0", "1"]


def test_threads_write_the_same_entry(tmp_path: Path) -> None:
    plans: list[Any] = []
    threads = [threading.Thread(target=lambda: plans.append(planned(tmp_path).plan(W, X))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(plans) == 4 and not any("plan cache:" in n for p in plans for n in p.notes)
    assert "from_cache" in planned(tmp_path).plan(W, X).statistics and entry(tmp_path).suffix == ".json"
