"""Thirty small models as users write them, for ``small_models.py``: a name -> what builds it."""

from collections.abc import Callable

from . import decoders, encoders, others, transformers, vision
from .common import Model

MODELS: dict[str, Callable[[], Model]] = {
    **decoders.MODELS, **encoders.MODELS, **transformers.MODELS, **vision.MODELS, **others.MODELS,
}  # fmt: skip
EXTRA: dict[str, Callable[[], Model]] = others.EXTRA
"""Models of libraries that need not be installed."""
