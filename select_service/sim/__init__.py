"""Simulation of engines: the demo against a running service, and the replay of decision logs."""
