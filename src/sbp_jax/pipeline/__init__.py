"""Pipelines: a step cut into stages on groups of devices, driven by actors through a schedule."""

from .choose import make_pipeline as make_pipeline
from .make import make_step as make_step
from .marks import scope as scope
from .options import Pipeline as Pipeline
from .plan import PipelinePlan as PipelinePlan
from .step import PipelineStep as PipelineStep
