"""Every example, small: what it returns is what it says; a check that is not true ends it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

import bert_mlm
import dlrm
import faces
import lora
import mlp_digits
import moe
import resnet
import sbp_jax as sbp
import shared
import train_gpt


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """jax compiles a step for ``plan.verify()``, and again for calls: the same program, found in a cache here."""
    wanted = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for settings in (wanted, before):
        compilation_cache.reset_cache()
        for name, value in settings.items():
            jax.config.update(name, value)
        if settings is wanted:
            yield
    compilation_cache.reset_cache()


def signatures(plan: sbp.Plan, path: str) -> set[str]:
    """The signatures of the arguments whose paths match a regular expression."""
    found = {str(leaf.signature) for leaf in plan.inputs if re.search(path, leaf.path)}
    assert found, path
    return found


def kinds(plan: sbp.Plan) -> set[str]:
    """The collectives that a plan has."""
    return {move.kind for boxing in plan.boxings() for move in boxing.moves if move.is_collective}


@pytest.mark.slow
def test_four_parallelisms_learn_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    results: dict[str, Any] = mlp_digits.main(["--steps", "25"])
    assert list(results) == ["data parallel", "model parallel", "hybrid parallel", "the planner's"]
    plans = {name: plan for name, (plan, _, _) in results.items()}
    assert signatures(plans["data parallel"], r"/kernel") == {"B"}
    assert signatures(plans["model parallel"], r"wide/kernel") == {"S(1)"}
    assert signatures(plans["hybrid parallel"], r"narrow/kernel") == {"B, S(0)"}
    assert kinds(plans["data parallel"]) == {"all_reduce"}
    for _, losses, accuracy in results.values():
        np.testing.assert_allclose(losses, results["data parallel"][1], rtol=1e-4)
        assert accuracy > 0.9
    said = capsys.readouterr().out
    with pytest.raises(ValueError, match="no argument is called '0/wide'; there are 0/model/"):
        shared.brief(plans["data parallel"], "0/wide")
    assert "(S(0)) @ (B) = (S(0))" in said and "(S(1)) @ (S(0)) = (P)" in said


def test_the_demo_equals_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--preset", "tiny", "--steps", "4", "--compare-steps", "2", "--seq", "32", "--out", str(tmp_path)]
    assert train_gpt.main(small) == 0
    said = capsys.readouterr().out
    assert "equal to a single device over the first 2 steps" in said and "no more and no less" in said
    plan = sbp.Plan.load(tmp_path / "plan.json")
    assert {str(leaf.signature) for leaf in plan.inputs} - {"B, B"}, "nothing is split"
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_batch_statistics_are_global() -> None:
    result: dict[str, Any] = resnet.main(["--steps", "20", "--batch", "32", "--compare-steps", "1"])
    assert signatures(result["plan"], "^1/batch/images") == {"S(0), S(0)"}
    np.testing.assert_allclose(result["mean"], result["whole"], atol=1e-4)
    np.testing.assert_allclose(result["losses"][:1], result["single"], rtol=1e-4)


@pytest.mark.slow
def test_bert_learns_from_masked_text() -> None:
    result: dict[str, Any] = bert_mlm.main(
        ["--layers", "1", "--steps", "20", "--batch", "16", "--seq", "32", "--compare-steps", "2"]
    )
    np.testing.assert_allclose(result["losses"][:2], result["single"], rtol=1e-4)
    assert int(result["state"].step) == 20
    assert result["plan"].optimality_gap < 0.01


def test_a_mask_hides_an_eighth() -> None:
    text = jax.numpy.full((64, 512), 65)
    seen, chosen = map(np.asarray, bert_mlm.mask(jax.random.key(0), text))
    assert (seen == 65)[~chosen].all()
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (seen == bert_mlm.MASK)[chosen].mean() == pytest.approx(0.8, abs=0.02)
    assert (seen == 65)[chosen].mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.02)


@pytest.mark.slow
def test_experts_stay_and_tokens_travel() -> None:
    result: dict[str, Any] = moe.main(["--layers", "1", "--steps", "15", "--compare-steps", "1"])
    assert result["experts"] == {"copied": ["B, B"], "pinned": ["B, S(0)"], "planned": ["S(0), S(0)"]}
    for name in ("pinned", "planned"):
        assert "all_to_all" in kinds(result["plans"][name])
    np.testing.assert_allclose(result["by_hand"], result["losses"][:1], rtol=1e-4)


@pytest.mark.slow
def test_adapters_are_all_that_travels() -> None:
    small = ["--layers=1", "--steps=30", "--pretrain-steps=40", "--compare-steps=2"]
    result: dict[str, Any] = lora.main(small)
    adapters = 4 * 2 * 2 * 64 * 4  # bytes of float32: two matrices with two adapters each, of 64 x 4
    assert result["adapters"] == adapters
    assert result["plan"].bytes_on_wire == pytest.approx(2 * 7 / 8 * adapters, rel=1e-3)
    assert result["whole"].bytes_on_wire > 15 * result["plan"].bytes_on_wire
    np.testing.assert_allclose(result["losses"][:2], result["single"], rtol=1e-4)


def test_tables_are_split() -> None:
    result: dict[str, Any] = dlrm.main(["--features", "4", "--steps", "20", "--compare-steps", "2"])
    plans, losses = result["plans"], result["losses"]
    assert signatures(plans["by rows"], "^0/params/tables/0") == {"S(0), S(0)"}
    assert signatures(plans["copied"], "^0/params/tables/0") == {"B, B"}
    assert "reduce_scatter" in kinds(plans["by rows"])
    assert plans["planned"].memory_per_device < plans["copied"].memory_per_device / 4
    np.testing.assert_allclose(losses["by rows"], losses["one device"], rtol=1e-4)


def test_logits_of_all_classes_are_never_gathered() -> None:
    result: dict[str, Any] = faces.main(["--identities", "4096", "--steps", "15", "--compare-steps", "2"])
    planned = result["planned"]
    assert signatures(planned, "centres") == {"S(1), S(1)"}
    assert {str(b.src) for b in planned.boxings() if "P(max)" in str(b.src)} == {"P(max), P(max)"}
    assert max(int(np.prod(b.shape)) for b in planned.boxings()) < 64 * 1_000_000 / 1000
    assert result["planned_largest"] == result["largest"]  # as much for a million classes as for four thousand
    np.testing.assert_allclose(result["losses"][:2], result["single"], rtol=1e-4)


def test_no_collective_of_a_million_classes_is_large() -> None:
    """Read from the compiled text itself, without the library's reader."""
    options = faces.read(["--batch", "32"])
    shapes = nnx.eval_shape(lambda: faces.create(options, 1_000_000))
    step = sbp.flax.jit(faces.train_step, placement=shared.devices(("dp", "tp")))
    text = step.lower(*shapes, faces.faces(0, options)).compile().as_text()
    collective = r"\b(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
    lines = [line for line in text.splitlines() if re.search(collective, line)]
    assert len(lines) > 3
    for line in lines:
        for dims in re.findall(r"f32\[([\d,]+)\]", line):
            assert np.prod([int(n) for n in dims.split(",")]) <= 32 * 64 * 2, line
    assert "125000" in text  # which is there: each device's part of the classes


def test_what_is_not_true_ends_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    shared.check(True, "one is one")
    assert capsys.readouterr().out == "  true: one is one\n"
    with pytest.raises(SystemExit, match="NOT TRUE: one is two") as ended:
        shared.check(False, "one is two")
    assert ended.value.code  # a text: Python prints it and exits with status 1
    with pytest.raises(SystemExit, match=r"largest relative difference of a loss 1\.0e-01, 0\.001 is allowed"):
        shared.check_equal([1.0, 1.1], [1.0, 1.0], "equal")
    with pytest.raises(SystemExit, match="NOT TRUE: nan"):
        shared.check_equal([float("nan")], [1.0], "nan")


def test_meshes() -> None:
    assert shared.mesh_shape("2x4") == (2, 4)
    assert shared.devices(("dp", "tp")).shape == (2, 4)
    assert shared.devices(("dp", "tp"), (4, 2)).shape == (4, 2)
    assert shared.devices(("dp",)).shape == (8,)
    with pytest.raises(SystemExit):
        resnet.main(["--mesh", "2x"])
