"""Schedules of pipelines as data, checked, timed and drawn before anything runs."""

from .check import check as check
from .draw import save_picture as save_picture
from .draw import to_svg as to_svg
from .draw import to_text as to_text
from .schedule import Kind as Kind
from .schedule import Schedule as Schedule
from .schedule import Task as Task
from .schedule import peak_held as peak_held
from .tables import BubbleFormula as BubbleFormula
from .tables import PeakFormula as PeakFormula
from .tables import ScheduleType as ScheduleType
from .tables import by_name as by_name
from .tables import register as register
from .tables import schedules as schedules
from .timing import Run as Run
from .timing import StageSeconds as StageSeconds
from .timing import Timing as Timing
from .timing import simulate as simulate
from .versions import peak_versions as peak_versions
from .versions import versions_used as versions_used
