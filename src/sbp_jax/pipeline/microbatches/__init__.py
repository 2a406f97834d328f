"""A step cut into micro-batches: what runs for each of them, what once before, what once after."""
