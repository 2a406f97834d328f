"""A plan with its function: ``sbp.Plan``, the step as a jitted function, its profile."""
