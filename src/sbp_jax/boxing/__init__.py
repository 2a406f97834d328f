"""Redistribution: signature A -> signature B by the cheapest route of explicit collectives."""

from ..pieces import identity as identity
from .across import Block as Block
from .across import Exchange as Exchange
from .across import exchange_of as exchange_of
from .across import exchanging as exchanging
from .between import Box as Box
from .between import parts as parts
from .collectives import apply as apply
from .collectives import execute as execute
from .collectives import without_permutes as without_permutes
from .reductions import Reduction as Reduction
from .reductions import is_sum as is_sum
from .reductions import of_route as of_route
from .reductions import reduction as reduction
from .routes import Route as Route
from .routes import check_partial as check_partial
from .routes import cost_matrix as cost_matrix
from .routes import itemsize_of as itemsize_of
from .routes import route as route
from .routes import seconds_matrix as seconds_matrix
from .routes import words_of as words_of
from .serve import serve as serve
from .table import Step as Step
