"""Small, complete training steps that tests, benchmarks and examples share.

``build(name, size, **overrides)`` gives a ``Case``: initial state, step, batches, and the shardings
that a user would write for it by hand. Each module has the same ``build`` without the name.
"""

from . import dlrm, gpt, gpt_nnx, llama, lstm, mlp, moe, resnet, vit, wide_resnet
from .common import Case

MODELS = {
    "mlp": mlp, "gpt": gpt, "gpt_nnx": gpt_nnx, "resnet": resnet, "lstm": lstm, "llama": llama, "moe": moe, "vit": vit,
    "wide_resnet": wide_resnet, "dlrm": dlrm,
}  # fmt: skip


def build(name: str, size: str = "tiny", **overrides: object) -> Case:
    """The training step of model ``name`` (a key of ``MODELS``); ``overrides`` replace fields of its config."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r} in the zoo; there are {', '.join(MODELS)}")
    return MODELS[name].build(size, **overrides)


__all__ = ["MODELS", "Case", "build"]
