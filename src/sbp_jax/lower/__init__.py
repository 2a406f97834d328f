"""plan + program -> JAX, and what XLA made of it against the plan."""

from .around import on_mesh as on_mesh
from .emit import local_function as local_function
from .gspmd import global_function as global_function
from .named import named_function as named_function
from .named import named_in as named_in
