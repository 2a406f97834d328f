"""A language model with mixture-of-experts MLPs: GShard (Lepikhin et al., arXiv:2006.16668), Switch (arXiv:2101.03961).

Each token goes to ``top_k`` experts that have room for it; what is routed where is a one-hot tensor, so routing is
two einsums, as GShard writes it. Every ``every``-th block has experts, the others a dense MLP.
"""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .common import Case, Tree, adamw, configure, cross_entropy, normal, trained
from .gpt import counting_text, layer_norm
from .transformer import attend, init_attention, init_mlp, init_norm, mlp


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A model and its training. ``dtype`` is the compute dtype; parameters and routing are float32.

    An expert takes ``capacity_factor`` times its even share of a sequence's choices, what is beyond is dropped.
    ``balance`` weighs the loss that keeps experts evenly used. ``middle`` is an expert's width.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    experts: int = 8
    top_k: int = 2
    middle: int = 128
    every: int = 2
    capacity_factor: float = 1.25
    balance: float = 0.01
    seq: int = 32
    vocab: int = 128
    batch: int = 16
    dtype: str = "float32"
    scan_layers: bool = False
    learning_rate: float = 3e-3

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that an expert takes."""
        return math.ceil(self.capacity_factor * self.top_k * self.seq / self.experts)


_LARGE = {"experts": 64, "seq": 1024, "vocab": 51200, "batch": 512, "dtype": "bfloat16", "learning_rate": 3e-4}
SIZES = {
    "tiny": MoeConfig(),
    "moe-10b": MoeConfig(layers=16, hidden=1536, heads=16, middle=6144, **_LARGE),
    "moe-27b": MoeConfig(layers=24, hidden=2048, heads=16, middle=8192, **_LARGE),
}

# Attention and dense MLPs as Megatron splits them; experts are split among devices whole.
MEGATRON = (
    (r"experts/(w_in|w_out)$", -3),
    (r"w_(q|k|v|in)$", -1),
    (r"(^|/)b_(q|k|v|in)$", -1),
    (r"w_(o|out)$", -2),
    (r"embed/tokens$", -2),
)


def route(config: MoeConfig, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which token goes to which place of which expert: weights (batch, seq, experts, capacity); the balance loss.

    First choices have the first places, then second ones, each in the order of the sequence.
    """
    b, s, e = gates.shape
    weight, expert = jax.lax.top_k(gates, config.top_k)
    weight = weight / weight.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(expert, e)  # (batch, seq, choice, expert)
    in_order = chosen.transpose(0, 2, 1, 3).reshape(b, config.top_k * s, e)
    place = (jnp.cumsum(in_order, 1) - in_order).reshape(b, config.top_k, s, e).transpose(0, 2, 1, 3)
    place = (place * chosen).sum(-1).astype(jnp.int32)  # (batch, seq, choice)
    # A place beyond the capacity has no one in its row: the token is dropped.
    where = jax.nn.one_hot(place, config.capacity)
    combine = jnp.einsum("bske,bskc->bsec", chosen * weight[..., None], where)
    balance = e * jnp.mean(chosen[:, :, 0].mean(1) * gates.mean(1)) * e
    return combine, balance


def experts(config: MoeConfig, x: jax.Array, p: Tree) -> tuple[jax.Array, jax.Array]:
    """x plus what its experts make of its norm, (batch, seq, hidden); the balance loss."""
    y = layer_norm(x, p["norm_mlp"])
    gates = jax.nn.softmax(y.astype(jnp.float32) @ p["w_router"].astype(jnp.float32), axis=-1)
    combine, balance = route(config, gates)
    dispatch = (combine > 0).astype(x.dtype)
    given = jnp.einsum("bsec,bsh->ebch", dispatch, y)
    middle = jax.nn.gelu(jnp.einsum("ebch,ehm->ebcm", given, p["experts"]["w_in"]))
    made = jnp.einsum("ebcm,emh->ebch", middle, p["experts"]["w_out"])
    return x + jnp.einsum("bsec,ebch->bsh", combine.astype(x.dtype), made), balance


def group(config: MoeConfig, x: jax.Array, blocks: Tree) -> tuple[jax.Array, jax.Array]:
    """``every`` blocks, the last one with experts: x (batch, seq, hidden) -> the same, and the balance loss."""
    blocks = jax.tree.map(lambda leaf: leaf.astype(config.dtype), blocks)
    for p in blocks[:-1]:
        x = mlp(attend(x, p, config.heads, causal=True), p)
    return experts(config, attend(x, blocks[-1], config.heads, causal=True), blocks[-1])


def init_params(config: MoeConfig, key: jax.Array) -> Tree:
    """The parameters: normal(0.02), the matrices that end a residual branch scaled by 1/sqrt(2 layers)."""
    h, m, e, std, std_out = config.hidden, config.middle, config.experts, 0.02, 0.02 / (2 * config.layers) ** 0.5
    key_tokens, key_positions, *keys = jax.random.split(key, config.layers + 2)

    def block(key: jax.Array, dense: bool) -> Tree:
        k = jax.random.split(key, 4)
        p = init_attention(k[0], h, std, std_out)
        if dense:
            return p | init_mlp(k[1], h, std, std_out)
        matrices = {"w_in": normal(k[1], (e, h, m), std), "w_out": normal(k[2], (e, m, h), std_out)}
        return p | {"norm_mlp": init_norm(h), "w_router": normal(k[3], (h, e), std), "experts": matrices}

    n = config.every
    groups = [
        [block(k, dense=i < n - 1) for i, k in enumerate(keys[first : first + n])]
        for first in range(0, config.layers, n)
    ]
    return {
        "embed": {
            "tokens": normal(key_tokens, (config.vocab, h), std),
            "positions": normal(key_positions, (config.seq, h), std),
        },
        "groups": jax.tree.map(lambda *leaves: jnp.stack(leaves), *groups) if config.scan_layers else groups,
        "norm": init_norm(h),
    }


def loss_fn(config: MoeConfig, params: Tree, batch: Tree) -> jax.Array:
    """Mean cross entropy in nats a token, and the weighted balance loss (1 where experts are evenly used)."""
    tokens = params["embed"]["tokens"]
    x = (tokens[batch["inputs"]] + params["embed"]["positions"]).astype(config.dtype)
    one_group = functools.partial(group, config)
    if config.scan_layers:
        x, balances = jax.lax.scan(one_group, x, params["groups"])
        balance = balances.mean()
    else:
        balances = []
        for blocks in params["groups"]:
            x, one = one_group(x, blocks)
            balances.append(one)
        balance = sum(balances) / len(balances)
    logits = jnp.einsum("bsh,vh->bsv", layer_norm(x, params["norm"]), tokens.astype(config.dtype))
    return cross_entropy(logits, batch["targets"]) + config.balance * balance


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``MoeConfig``."""
    config = configure(SIZES, size, overrides)
    if config.layers % config.every:
        raise ValueError(f"layers ({config.layers}) must be a multiple of every ({config.every})")

    def batch(seed: int) -> Tree:
        return counting_text(seed, (config.batch, config.seq), config.vocab)

    return trained(
        "moe", adamw(config.learning_rate), lambda: init_params(config, jax.random.key(0)),
        functools.partial(loss_fn, config), batch, config.layers, "adamw+clip", MEGATRON,
    )  # fmt: skip
