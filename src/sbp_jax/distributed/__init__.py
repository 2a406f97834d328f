"""Several processes, on one machine or many: started together, with collectives between their devices."""

from ..processes import World as World
from ..processes import initialize as initialize
from ..processes import is_initialized as is_initialized
from ..processes import shutdown as shutdown
