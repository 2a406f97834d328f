"""plan + program -> JAX, and what XLA made of it against the plan."""

from .emit import local_function as local_function
from .gspmd import global_function as global_function
from .named import named_function as named_function
from .named import named_in as named_in
