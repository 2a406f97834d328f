"""The graph itself as a choice: substitutions that are proven to compute the same, and a search among programs.

A substitution (``substitution.py``) knows where it fits and what to compute instead; ``proof.py`` tests that on random
programs before it is admitted; ``apply.py`` writes the new program; ``taso.py`` searches. Nothing here knows of costs:
the search is given a function that prices a program.
"""

# The search tries substitutions in the order of these imports.
from . import products  # isort: skip
from . import concatenations, convolutions, transposes  # isort: skip
from .apply import Move as Move
from .apply import NoMatch as NoMatch
from .apply import apply as apply
from .apply import replay as replay
from .taso import Rewriting as Rewriting
