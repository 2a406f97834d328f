"""The programs of a stage: one to plan, and cut into the jitted parts that run."""
