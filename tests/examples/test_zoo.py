"""The zoo's models train, repeat themselves exactly, and run under the shardings written by hand for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import zoo
from zoo.common import Case, named_shardings

STEPS = 20
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "gpt": ("gpt", {}),
    "gpt_nnx": ("gpt_nnx", {}),
    "resnet": ("resnet", {}),
    "lstm-bfloat16": ("lstm", {"dtype": "bfloat16"}),
    "moe": ("moe", {}),
    "dlrm": ("dlrm", {}),
}
SLOW_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-untied-fused-bfloat16": ("gpt", {"tied": False, "fused_qkv": True, "dtype": "bfloat16"}),
    "gpt-scan-remat": ("gpt", {"scan_layers": True, "remat": True}),
    "gpt-accumulation": ("gpt", {"grad_accumulation": 4, "batch": 8}),
    "llama": ("llama", {}),
    "vit-scan-remat": ("vit", {"scan_layers": True, "remat": True}),
    "wide_resnet": ("wide_resnet", {}),
    "mlp-bfloat16": ("mlp", {"dtype": "bfloat16"}),
    "gpt-bfloat16": ("gpt", {"dtype": "bfloat16"}),
    "gpt_nnx-remat-untied-bfloat16": ("gpt_nnx", {"remat": True, "tied": False, "dtype": "bfloat16"}),
    "resnet-bfloat16-adamw": ("resnet", {"dtype": "bfloat16", "optimizer": "adamw", "learning_rate": 1e-2}),
    "lstm": ("lstm", {}),
    "llama-scan-remat-bfloat16": ("llama", {"scan_layers": True, "remat": True, "dtype": "bfloat16"}),
    "moe-scan-bfloat16": ("moe", {"scan_layers": True, "layers": 4, "dtype": "bfloat16"}),
    "vit-bfloat16": ("vit", {"dtype": "bfloat16"}),
    "wide_resnet-bfloat16": ("wide_resnet", {"dtype": "bfloat16"}),
}
WITH_DROPOUT = ("mlp", "lstm", "gpt", "gpt_nnx", "resnet")


def case_of(variant: str) -> Case:
    name, overrides = (VARIANTS | SLOW_VARIANTS)[variant]
    return zoo.build(name, **overrides)


def plain_leaves(state: object) -> list[np.ndarray]:
    """The leaves as numpy arrays, random keys as their data."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("variant", [*VARIANTS, *(pytest.param(v, marks=pytest.mark.slow) for v in SLOW_VARIANTS)])
def test_loss_falls_and_a_step_repeats_itself(variant: str) -> None:
    case = case_of(variant)
    first = jax.jit(case.init)()
    step = jax.jit(case.step)
    state, losses = first, []
    for i in range(STEPS):
        state, loss = step(state, case.batch(i))
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:2]), losses
    # The step is pure and its result has the state's structure, shapes and dtypes: a loop never retraces.
    assert float(step(first, case.batch(0))[1]) == losses[0]
    assert jax.eval_shape(lambda: first) == jax.eval_shape(lambda: state)
    pairs = zip(plain_leaves(first), plain_leaves(state), strict=True)
    assert np.mean([(before != after).any() for before, after in pairs]) > 0.8


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("mlp", "lstm") else pytest.mark.slow) for name in WITH_DROPOUT]
)
def test_dropout_differs_from_step_to_step(name: str) -> None:
    case = zoo.build(name, learning_rate=0.0)
    step = jax.jit(case.step)
    state, loss = step(jax.jit(case.init)(), case.batch(0))
    again = step(state, case.batch(0))[1]
    assert float(loss) != float(again)


@pytest.mark.parametrize(("name", "dim"), [("mlp", 0), ("resnet", 0), ("gpt", 0), ("lstm", 0), ("vit", 0), ("dlrm", 0)])
def test_batches_depend_on_the_seed_only(name: str, dim: int) -> None:
    case = zoo.build(name)
    one, same, other = (jax.tree.leaves(case.batch(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert {leaf.shape[dim] for leaf in one} == {16}


def split_leaves(specs: object) -> int:
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    return sum(bool(tuple(spec)) for spec in jax.tree.leaves(specs, is_leaf=is_spec))


@pytest.mark.parametrize(
    ("variant", "parameters", "copies"),
    [
        # split parameters, and how many like-shaped trees the state has (the parameters; Adam's two; momentum)
        ("mlp", 4 + 2, 3),
        ("gpt", 2 * (4 + 3 + 2 + 1) + 1, 3),
        ("gpt-scan-remat", (4 + 3 + 2 + 1) + 1, 3),
        ("gpt-untied-fused-bfloat16", 2 * (2 + 1 + 2 + 1) + 2, 3),
        ("gpt_nnx", 2 * (4 + 3 + 2 + 1) + 1, 3),
        ("lstm", 2 * 3 + 2, 3),
        ("resnet", 2 * (2 + 2) + 2, 2),
        ("llama", 2 * 7 + 2, 3),
        ("moe", (3 + 3 + 1) * 2 + 3 + 2 + 1, 3),
        ("vit-scan-remat", 4 + 4 + 2 + 2, 3),
        ("wide_resnet", 3 * (2 + 2) + 2, 2),
        ("dlrm", 15 + 2 + 1, 2),
    ],
)
def test_megatron_splits_weights_and_their_optimizer_states(variant: str, parameters: int, copies: int) -> None:
    shardings = case_of(variant).hand_shardings(("dp", "tp"))
    running_statistics = {"resnet": 2 * 2, "wide_resnet": 3 * 2}.get(variant, 0)
    assert split_leaves(shardings["megatron"][0]) == parameters * copies + running_statistics
    assert split_leaves(shardings["data_parallel"][0]) == 0


def test_the_batch_is_split_where_it_should_be() -> None:
    case = zoo.build("gpt")
    assert case.hand_shardings(("dp", "tp"))["data_parallel"][1]["inputs"] == PartitionSpec(("dp", "tp"))
    assert case.hand_shardings(("dp", "tp"))["megatron"][1]["inputs"] == PartitionSpec("dp")
    assert case.hand_shardings(("tp",))["megatron"][1]["inputs"] == PartitionSpec(None)
    accumulating = zoo.build("gpt", grad_accumulation=8)
    assert accumulating.batch(0)["inputs"].shape == (8, 16, 32)
    assert accumulating.hand_shardings(("dp",))["data_parallel"][1]["inputs"] == PartitionSpec(None, "dp")


def check_hand_shardings(name: str, shape: tuple[int, int]) -> None:
    case = zoo.build(name)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), ("dp", "tp"))
    state, batch = jax.jit(case.init)(), case.batch(0)
    truth = jax.jit(case.step)(state, batch)
    for specs in case.hand_shardings(mesh.axis_names).values():
        state_shardings, batch_shardings = (named_shardings(mesh, tree) for tree in specs)
        step = jax.jit(
            case.step,
            in_shardings=(state_shardings, batch_shardings),
            out_shardings=(state_shardings, named_shardings(mesh, PartitionSpec())),
        )
        new_state, loss = step(state, batch)
        np.testing.assert_allclose(float(loss), float(truth[1]), rtol=1e-5)
        for want, got in zip(plain_leaves(truth[0]), plain_leaves(new_state), strict=True):
            # Adam's first step is the gradient's sign: where a gradient is zero but for rounding, it may turn.
            close = np.isclose(got, want, rtol=1e-3, atol=1e-4)
            assert close.mean() > 0.99


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt", "moe"))])
def test_hand_shardings_compute_the_same_step(name: str) -> None:
    check_hand_shardings(name, (2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_hand_shardings_compute_the_same_step_on_every_mesh(name: str, mesh_shape: tuple[int, int]) -> None:
    check_hand_shardings(name, mesh_shape)


def test_bad_requests_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="no model 'bert' in the zoo; there are mlp, gpt"):
        zoo.build("bert")
    with pytest.raises(ValueError, match="no size 'huge'; there are tiny"):
        zoo.build("gpt", "huge")
    with pytest.raises(ValueError, match="GptConfig has no field depth; it has layers"):
        zoo.build("gpt", depth=3)
    with pytest.raises(ValueError, match=r"options of zoo\.gpt, not of zoo\.gpt_nnx"):
        zoo.build("gpt_nnx", scan_layers=True)
    with pytest.raises(ValueError, match=r"layers \(3\) must be a multiple of every \(2\)"):
        zoo.build("moe", layers=3)
    with pytest.raises(ValueError, match=r"depth is 6 n \+ 4 .* got 12"):
        zoo.build("wide_resnet", depth=12)


@pytest.mark.parametrize(
    ("size", "millions"), [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)]
)
def test_gpt2_sizes_are_gpt2s(size: str, millions: int) -> None:
    params = zoo.build("gpt", size, vocab=50257).abstract_state()["params"]
    assert round(sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6) == millions


@pytest.mark.parametrize(
    ("name", "size", "billions"),
    [
        ("llama", "llama3-8b", 8.03), ("llama", "llama3-70b", 70.6), ("moe", "moe-27b", 26.7),
        ("vit", "vit-l16", 0.304), ("dlrm", "criteo", 26.15),
    ],
)  # fmt: skip
def test_large_sizes_are_as_published(name: str, size: str, billions: float) -> None:
    params = zoo.build(name, size).abstract_state()["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e9 == pytest.approx(billions, rel=5e-3)


def test_experts_have_places_for_their_share_of_tokens_only() -> None:
    config = zoo.moe.SIZES["tiny"]
    gates = jax.nn.softmax(jax.random.normal(jax.random.key(0), (4, config.seq, config.experts)), axis=-1)
    combine, balance = zoo.moe.route(config, gates)
    taken = np.asarray(combine > 0)
    assert combine.shape == (4, config.seq, config.experts, config.capacity)
    assert taken.sum(1).max() == 1  # a place holds one token
    assert taken.sum((2, 3)).max() == config.top_k
    # Who is dropped is late in the sequence, or sent there by a second choice: first choices are served first.
    first = np.asarray(gates.argmax(-1))
    counts = np.stack([np.cumsum(first == e, 1) for e in range(config.experts)], -1)
    served: np.ndarray = np.asarray(taken.any(-1))
    for b, s in np.ndindex(first.shape):
        assert served[b, s, int(first[b, s])] == (counts[b, s, first[b, s]] <= config.capacity)
    assert 0.9 < float(balance) < 1.5
    # All tokens to one expert: the balance loss is as many times as large as there are experts.
    one_sided = jnp.full(gates.shape, 1e-6).at[..., 0].set(1.0)
    np.testing.assert_allclose(zoo.moe.route(config, one_sided)[1], config.experts, rtol=1e-4)
