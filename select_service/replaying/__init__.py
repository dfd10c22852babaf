"""What other policies would have done with one's own traffic: the core against simulated engines.

hardware, engine, pool and pool_kernels    one rank, vLLM-like: a batch budget, a cache, preemption
command, log_files, traffic                `select-service replay`: logs become a workload
figures, report                            what runs brought, and how it is shown
streams                                    what is asked, as chains of blocks
choosers, core_choosers                    who chooses: routers that know less, and the core
world                                      virtual time: clients, engines, events and their delays

Everything follows from a seed, and nothing of it runs in a service.  `scripts/bench/quality`
compares policies with the same engines.
"""
