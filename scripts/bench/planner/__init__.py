"""A fleet under a planner: real processes, simulated engines, accelerated time."""
