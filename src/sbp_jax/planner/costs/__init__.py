"""Seconds: of an op, of a wait, and of a whole choice as a graph of costs."""
