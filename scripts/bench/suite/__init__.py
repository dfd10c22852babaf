"""The benchmark suite: this service and others in turns, cell by cell (scripts/benchmark).

__main__ reads the command line; work goes through the parts; requests, events, scale and starts are
the parts; stages starts and fills what they measure; samples holds what was found, report and
curves show it; machine says where it was found; reference makes the environment of the reference.
"""
