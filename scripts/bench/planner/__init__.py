"""A fleet under a planner: real processes, simulated engines, time that runs faster."""
