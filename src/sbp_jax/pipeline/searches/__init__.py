"""Published searches for stages: each a file, all judged by the dynamic program's model of a step."""

# fmt: off
from . import alpa_inter, dapple, distir, hetpipe, pipedream, piper, pipetransformer, rannc, torchgpipe, vpipe

# fmt: on
from .task import StageTask as StageTask
from .task import search_stages as search_stages
