"""When memory is short: what is made again instead of held."""
