"""Signatures, plans and global tensors through ``pickle``: here, and in a process that hashes text differently."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze

import sbp_jax as sbp
from sbp_jax.errors import InternalError
from sbp_jax.plan.trees import packed, unpacked
from sbp_jax.planner.memory.infeasible import TooSmall

MESH = sbp.placement("cpu", ranks=[[0, 1, 2, 3], [4, 5, 6, 7]], axis_names=("dp", "tp"))
SIGNATURES = ["B, B", "S(0), B", "S(0), S(1)", "S(0), S(0)", "S(1), S(0)", "P, S(0)", "S(0), P(max)", "P(min), B"]


def again(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


def train(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(batch @ w) @ w.T - batch) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    return {"w": state["w"] - 0.1 * gradient, "n": state["n"] + 1}, value


STATE, BATCH = {"w": jnp.ones((16, 64)) / 16, "n": jnp.int32(0)}, jnp.linspace(-1, 1, 32 * 16).reshape(32, 16)


def elsewhere(code: str, *files: Path, seed: str = "1", devices: int = 8) -> str:
    """What ``code`` prints in a new process, with these files in ``sys.argv``."""
    env = os.environ | {
        "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(Path(sbp.__file__).parents[1]), str(Path(__file__).parent)]),
    }  # fmt: skip
    program = "import pickle, sys\nfrom pathlib import Path\nimport sbp_jax as sbp\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program, *map(str, files)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("text", SIGNATURES)
def test_signatures_and_their_parts(text: str) -> None:
    s = sbp.Signature.parse(text)
    for copied in (again(s), copy.copy(s), copy.deepcopy(s)):
        assert copied == s and hash(copied) == hash(s) and str(copied) == text and {s: 1}[copied] == 1
    assert again(tuple(s)) == tuple(s) and again(MESH) == MESH


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_signature_is_the_same_in_another_process(tmp_path: Path, seed: str) -> None:
    file = tmp_path / "signatures"
    file.write_bytes(pickle.dumps([sbp.Signature.parse(s) for s in SIGNATURES]))
    code = """
        found = pickle.loads(Path(sys.argv[1]).read_bytes())
        own = [sbp.Signature.parse(str(s)) for s in found]
        assert found == own and [hash(s) for s in found] == [hash(s) for s in own]
        assert {s: k for k, s in enumerate(own)}[found[3]] == 3
        print(len(found))
    """
    assert elsewhere(code, file, seed=seed) == str(len(SIGNATURES))


def test_a_plan_runs_after_pickling() -> None:
    step = sbp.auto_parallel(train, placement=MESH, donate_argnums=0)
    plan = step.plan(STATE, BATCH)
    found = again(plan)
    assert found.to_json() == plan.to_json() and str(found) == str(plan)
    assert found.signatures() == plan.signatures()  # trees as the function's, not dicts by path
    assert found.explain("w").items and found.simulate().step_seconds == plan.simulate().step_seconds
    given = sbp.auto_parallel(train, plan=found, donate_argnums=0)
    state, loss = given(jax.tree.map(jnp.copy, STATE), BATCH)
    truth, wanted = jax.jit(train)(STATE, BATCH)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    np.testing.assert_allclose(state["w"], truth["w"], rtol=1e-5)
    with pytest.raises(sbp.PlanError, match="does not know its function"):
        found.verify()
    with pytest.raises(sbp.PlanError, match="cannot plan again"):
        found.explain("0/w", "B, B")
    assert found.verify(given.lower(STATE, BATCH).compile()).ok


def test_copies_of_a_plan_can_do_what_it_can() -> None:
    plan = sbp.plan(train, STATE, BATCH, placement=MESH)
    for found in (copy.copy(plan), copy.deepcopy(plan)):
        assert found.to_json() == plan.to_json() and found.signatures() == plan.signatures()
        assert found.verify().ok and found.explain("0/w", "B, B").replanned is not None
    deep = copy.deepcopy(plan)
    deep.notes.append("mine")
    assert "mine" not in plan.notes


def test_a_plan_in_another_process(tmp_path: Path) -> None:
    plan = sbp.plan(train, STATE, BATCH, placement=MESH)
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    code = """
        from test_pickle import BATCH, STATE, train
        import jax, numpy as np
        plan = pickle.loads(Path(sys.argv[1]).read_bytes())
        arguments, _ = plan.signatures()
        assert {s: 1 for s in jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, sbp.Signature))}
        step = sbp.auto_parallel(train, plan=plan)
        state, loss = step(STATE, BATCH)
        assert plan.verify(step.lower(STATE, BATCH).compile()).ok
        np.testing.assert_allclose(loss, jax.jit(train)(STATE, BATCH)[1], rtol=1e-5)
        print(arguments[0]["w"])
    """
    assert elsewhere(code, tmp_path / "plan") == str(plan.signatures()[0][0]["w"])


@flax.struct.dataclass
class Model:
    w: jax.Array
    apply: Any = flax.struct.field(pytree_node=False)


def test_a_plan_whose_arguments_cannot_be_pickled() -> None:
    """A training state that holds a lambda: the plan is data all the same, and gives signatures by path."""
    plan = sbp.plan(lambda m, x: m.apply(x @ m.w), Model(jnp.ones((16, 8)), lambda x: x + 1), BATCH, placement=MESH)
    found = again(plan)
    assert found.to_json() == plan.to_json()
    assert set(found.signatures()[0]) == {leaf.path for leaf in plan.inputs}


def test_structures_travel_as_plain_data() -> None:
    class Hidden(NamedTuple):
        a: Any

    for tree in (
        {"x": [1, (2, None)]},
        optax.adamw(1e-3).init({"a": jnp.ones(2)}),
        freeze({"a": {"b": 1}}),
        3,
    ):
        structure = jax.tree.structure(tree)
        assert unpacked(again(packed(structure))) == structure
    assert packed(jax.tree.structure(Hidden(1))) is None  # nobody could look that class up
    assert packed(jax.tree.structure(Model(jnp.ones(2), print))) is None
    strange = {"structure": (("no.such.module", "Kind"), None, [None])}
    assert unpacked(strange) is None


@pytest.mark.parametrize("shape", [(8, 8), (7, 5), (8, 0)])
@pytest.mark.parametrize("text", SIGNATURES)
def test_tensors_keep_their_components(text: str, shape: tuple[int, ...]) -> None:
    if "S(1), S(0)" in text and shape == (7, 5):
        shape = (7, 6)
    if "S(0), S(0)" in text:
        shape = (9, shape[1])
    x = sbp.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), placement=MESH, sbp=text)
    found = again(x)
    assert isinstance(found, sbp.GlobalTensor)
    assert (found.sbp, found.placement, found.dtype, found.shape) == (x.sbp, x.placement, x.dtype, x.shape)
    assert found.storage.sharding == x.storage.sharding
    for a, b in zip(found.to_local(), x.to_local(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal((found + x).numpy(), 2 * x.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "complex64", "float8_e4m3fn"])
def test_tensors_of_other_types(dtype: str) -> None:
    x = sbp.tensor(np.arange(8).astype(jnp.dtype(dtype)), placement=MESH, sbp="S(0), B")
    found = again(x)
    assert found.dtype == x.dtype and found.numpy().tobytes() == x.numpy().tobytes()


def test_terms_are_kept_and_copies_are_not() -> None:
    ones = {r: np.full((4, 4), float(r), np.float32) for r in range(8)}
    x = sbp.local_to_global(ones, placement=MESH, sbp="P, S(0)")
    for a, b in zip(again(x).to_local(), x.to_local(), strict=True):
        np.testing.assert_array_equal(a, b)
    whole = sbp.tensor(np.zeros((256, 256), np.float32), placement=MESH, sbp="B, B")
    assert len(pickle.dumps(whole)) < 1.1 * whole.nbytes  # not eight times


def test_a_deep_copy_outlives_the_tensor() -> None:
    x = sbp.tensor(np.arange(8.0, dtype=np.float32), placement=MESH, sbp="S(0), P")
    deep, shallow = copy.deepcopy({"x": x})["x"], copy.copy(x)
    assert shallow.storage is x.storage and deep.storage.sharding == x.storage.sharding and deep.sbp == x.sbp
    x.delete()
    np.testing.assert_array_equal(deep.numpy(), np.arange(8.0))
    with pytest.raises(sbp.SbpError, match=r"cannot pickle .*its buffers are gone"):
        pickle.dumps(x)


def test_trees_and_shapes_of_tensors() -> None:
    x = sbp.tensor(np.arange(8.0, dtype=np.float32), placement=MESH, sbp="S(0), B")
    _, tree = jax.tree.flatten({"x": x})
    assert again(tree) == tree and jax.tree.structure(again({"x": x})) == tree
    shapes = jax.eval_shape(lambda t: t, {"x": x})
    assert again(shapes)["x"].spec == x.spec
    with pytest.raises(sbp.SbpError, match="pickle needs the values"):
        jax.jit(lambda t: pickle.dumps(t) and t)(x)


def test_tensors_in_another_process(tmp_path: Path) -> None:
    x = sbp.tensor(np.arange(64.0, dtype=np.float32).reshape(8, 8), placement=MESH, sbp="S(0), P")
    (tmp_path / "x").write_bytes(pickle.dumps(x))
    code = """
        x = pickle.loads(Path(sys.argv[1]).read_bytes())
        own = sbp.tensor(x.numpy(), placement=x.placement, sbp="S(0), P")
        assert x.spec == own.spec and x.sbp == own.sbp
        print((x + own).numpy().sum(), x.sbp)
    """
    assert elsewhere(code, tmp_path / "x") == f"{2 * np.arange(64.0).sum()} S(0), P"
    few = """
        try:
            pickle.loads(Path(sys.argv[1]).read_bytes())
        except sbp.PlacementError as error:
            print(error)
    """
    assert "there are only 2 cpu device(s)" in elsewhere(few, tmp_path / "x", devices=2)


def test_errors_and_configurations() -> None:
    error = again(TooSmall("too small", 12.0))
    assert (str(error), error.smallest_bytes) == ("too small", 12.0)
    broken = InternalError("a count is off")
    assert str(again(broken)) == str(broken)
    config = sbp.AutoParallelConfig(memory_limit=1e9, solver="zero3")
    assert again(config) == config
