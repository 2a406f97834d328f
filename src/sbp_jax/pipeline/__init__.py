"""Pipelines: schedules as data, checked, timed and drawn before anything runs."""

from .check import check as check
from .draw import to_svg as to_svg
from .draw import to_text as to_text
from .schedule import Kind as Kind
from .schedule import Schedule as Schedule
from .schedule import Task as Task
from .schedule import peak_held as peak_held
from .schedules import ScheduleType as ScheduleType
from .schedules import by_name as by_name
from .schedules import register as register
from .schedules import schedules as schedules
from .timing import Run as Run
from .timing import StageSeconds as StageSeconds
from .timing import Timing as Timing
from .timing import simulate as simulate
