"""Global tensors: a value with a placement and a signature, and ordinary operators on it."""

from .construct import arange as arange
from .construct import empty as empty
from .construct import empty_like as empty_like
from .construct import eye as eye
from .construct import full as full
from .construct import full_like as full_like
from .construct import linspace as linspace
from .construct import local_to_global as local_to_global
from .construct import ones as ones
from .construct import ones_like as ones_like
from .construct import rand as rand
from .construct import rand_like as rand_like
from .construct import randint as randint
from .construct import randn as randn
from .construct import randn_like as randn_like
from .construct import tensor as tensor
from .construct import zeros as zeros
from .construct import zeros_like as zeros_like
from .global_tensor import GlobalTensor as GlobalTensor
from .namespace import apply as apply
from .namespace import matmul as matmul
from .namespace import numpy as numpy
