"""Bytes: when each value is held, what a choice holds over the step, what to say when nothing fits."""
