"""Input pipelines behind a signature: every process loads only the examples that its own devices hold."""

from .iterator import Pipeline as Pipeline
from .iterator import pipeline as pipeline
