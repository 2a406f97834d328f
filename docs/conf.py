"""Sphinx's settings. `make docs` builds with warnings as errors; every page with code is run while it is built.

``SBP_DOCS_EXECUTE`` says how: "force" (the default), "cache" (only pages whose code changed; for writing prose), "off".
"""

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "src")]

# Inherited by the kernels that run the pages: 8 simulated devices, code that compiles quickly, the pictures beside this
# file, the models of examples/.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_PPRINT_USE_COLOR"] = "0"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["PYTHONPATH"] = os.pathsep.join(str(p) for p in (HERE, ROOT / "src", ROOT / "examples"))

import kernels
import public
import sbp_jax

kernels.prepare()

project = "sbp_jax"
author = "the sbp_jax authors"
copyright = "the sbp_jax authors, Apache-2.0"
version = release = sbp_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path: list[str] = []

html_theme = "furo"
html_title = "sbp_jax"
html_static_path = ["_static"]
html_css_files = ["sbp.css"]

# Nothing is read from the network: names of other libraries are not looked up, our own must exist.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!sbp_jax\b).*"),
    (r"py:.*", r"sbp_jax\.tensor\..*(\._At|\.Stored)"),  # how global tensors are kept: nobody makes one by hand
    (r"py:.*", r"sbp_jax\.(report|lower|plan\.insight)\..*"),  # what reports and counts are made of
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("SBP_DOCS_EXECUTE", "force")
nb_execution_timeout = 180
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_output_stderr = "warn"  # a warning that a page prints is a fault of the page

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Any) -> None:
    """What the settings above cannot say."""
    app.connect("autodoc-process-docstring", public.docstring)
    app.connect("source-read", public.links)
    app.connect("missing-reference", public.resolve)
    app.connect("env-check-consistency", public.check)
    app.connect("build-finished", kernels.tell_seconds)
