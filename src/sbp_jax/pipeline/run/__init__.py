"""A pipeline that runs by actors: what stages hold, whose lanes follow the schedule."""
