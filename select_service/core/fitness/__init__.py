"""Health joined with the fleet: who is checked, and what follows for those who decide.

fitness: all of it, between the catalog, the table of ranks and the monitor of `core.health`;
following: the interface of those who carry out what the monitor asks for;
reports: what callers say became of requests, and whom to believe
check_times: how long checks took
"""
