"""Pipelines: a step cut into stages on groups of devices, driven by actors through a schedule."""

from .choose.chooser import make_pipeline as make_pipeline
from .cuts.marks import scope as scope
from .make import make_step as make_step
from .options import Pipeline as Pipeline
from .plans.plan import PipelinePlan as PipelinePlan
from .run.step import PipelineStep as PipelineStep
