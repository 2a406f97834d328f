"""Published searches for stages: each a file, all judged by the dynamic program's model of a step."""

from . import (
    alpa_inter,
    dapple,
    distir,
    dnn_replication,
    hetpipe,
    pipedream,
    piper,
    pipetransformer,
    rannc,
    torchgpipe,
    vpipe,
)
from .task import StageTask as StageTask
from .task import search_stages as search_stages
