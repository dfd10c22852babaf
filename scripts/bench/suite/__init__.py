"""Benchmark suite: this service and others in turns, cell by cell (scripts/benchmark).

`__main__` reads the command line; `work` executes the parts, which are in `requests`, `events`,
`scale` and `starts`. `stages` starts and fills services; `samples` stores results; `report` and
`curves` present them. `machine` describes the machine; `reference` makes the environment of the
reference.
"""
