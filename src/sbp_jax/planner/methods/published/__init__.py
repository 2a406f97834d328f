"""Published searches for signatures, a file each: the idea of a paper on the cost graph, costs and memory of this one.

What a method leaves open is searched for exactly at the same costs (``decided.py``), so that it is judged by the best
plan that its decisions allow; ``fill=False`` turns that off.
"""

from . import (
    accpar,
    adaptive_paddle,
    alpa,
    auto_map,
    automap,
    double_recursive,
    flexflow,
    gspmd,
    neo,
    optcnn,
    p2,
    pase,
    roc,
    tensoropt,
    tofu,
)
