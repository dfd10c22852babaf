"""How well is chosen: the real core in virtual time against simulated engines.

    python -m scripts.bench.quality --help

The engines, virtual time and the choosers of one selector are those of `select_service.replaying`.

workloads, traces                          what is asked, as chains of blocks
replicas                                   several selectors that tell each other
switchback                                 an experiment next to runs of either policy alone
work, work_account                         the rule `work` and its variants in Python
named_choosers                             all that choose, by name
cells, figures, report                     what is measured, and how it is shown

Everything follows from a seed.  Nothing here is part of the service.
"""
