"""Where a step is cut into stages: marks, boundaries, loops over layers, and which stage runs which op."""
