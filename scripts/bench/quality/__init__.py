"""Quality of placement: the real core in virtual time against simulated engines.

    python -m scripts.bench.quality --help

Engines, virtual time and the routers of a selector come from `select_service.sim.engine`.

generated_workloads, trace_workloads, knowledge_workloads   requests as chains of blocks
situations                                 what selectors know of the caches
rollout_steps                              steps of reinforcement learning
replicated_selectors                       several selectors that exchange events
switchback                                 an experiment next to runs of either policy alone
work_rule, work_account                    the rule `work` and its variants in Python
peer_rules, rank_states                    rules of other routers
named_routers                              all routers by name
quality_runs, quality_figures, quality_report   measurements and their presentation

A seed determines everything. Nothing here is part of the service.
"""
