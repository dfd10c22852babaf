"""Quality of placement: the real core in virtual time against simulated engines.

    python -m scripts.bench.quality --help

Engines, virtual time and the routers of one selector come from `select_service.sim.engine`.

workloads, traces                          requests as chains of blocks
replicas                                   several selectors that exchange events
switchback                                 an experiment next to runs of either policy alone
work, work_account                         the rule `work` and its variants in Python
named_choosers                             all routers by name
cells, figures, report                     measurements and their presentation

A seed determines everything. Nothing here is part of the service.
"""
