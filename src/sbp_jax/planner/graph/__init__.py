"""The program as the planner decides it: clusters of ops, repeated layers, what fuses, roles of arguments."""
