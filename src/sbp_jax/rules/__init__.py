"""One factor map for each primitive, one file for each family; the registry."""

from . import attention, contraction, indexing, linalg, once, opaque, pointwise, reduction, shape, structure
from .base import Factors as Factors
from .base import Linear as Linear
from .base import Local as Local
from .base import Rule as Rule
from .base import is_padded as is_padded
from .base import lookup as lookup
from .base import names as names
from .base import register as register
from .base import whole as whole
from .padding import mask_reduced as mask_reduced
from .user import is_opaque_kernel as is_opaque_kernel
from .user import register_rule as register_rule
