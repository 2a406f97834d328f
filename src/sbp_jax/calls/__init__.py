"""A call of a planned function: its arguments, the program traced from it, what is pinned."""
