"""A choice as a plan, and what is told with it."""
