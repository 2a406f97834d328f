"""The launcher: starts the processes of a run, watches them, ends all when one fails, starts them again.

It needs no JAX in its own process.
"""
