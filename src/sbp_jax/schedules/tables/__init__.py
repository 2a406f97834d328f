"""Pipeline schedules, one file each: ``(ranks, microbatches) -> Schedule``, with what the schedule promises."""

from . import (
    chimera,
    dualpipe_v,
    eager_1f1b,
    gpipe,
    interleaved_1f1b,
    interleaved_gpipe,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    zb_h1,
    zb_v,
)
from .registry import BubbleFormula as BubbleFormula
from .registry import PeakFormula as PeakFormula
from .registry import ScheduleType as ScheduleType
from .registry import by_name as by_name
from .registry import register as register
from .registry import schedules as schedules
