"""The search: presolve, bounds, the 0-1 program, plans within a memory limit."""
