"""The planner's core in simulated time: engines, a fleet that starts and drains them, figures."""
