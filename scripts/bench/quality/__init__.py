"""How well is chosen: the real core in virtual time against simulated engines.

    python -m scripts.bench.quality --help

hardware, engine, pool and pool_kernels    one rank, vLLM-like: a batch budget, a cache, preemption
streams, workloads, traces                 what is asked, as chains of blocks
choosers, core_choosers, replicas          who chooses; the core among them
switchback                                 an experiment next to runs of either policy alone
work, work_account                         the rule `work` and its variants in Python
named_choosers                             all of them by name
world                                      virtual time: clients, engines, events and their delays
cells, figures, report                     what is measured, and how it is shown

Everything follows from a seed.  Nothing here is part of the service.
"""
