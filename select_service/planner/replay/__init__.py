"""Planner's core in simulated time: engines, a fleet that starts and drains engines, results."""
