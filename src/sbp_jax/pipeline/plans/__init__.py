"""The plans of stages, and of a pipeline: the planner's own, in time and memory together."""
