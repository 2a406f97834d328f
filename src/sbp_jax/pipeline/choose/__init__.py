"""What the user left open: stages, groups of devices and micro-batches."""
