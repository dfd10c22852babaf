"""Replay of recorded traffic under other policies: the core against simulated engines.

gpu_hardware, scheduler_engine, kv_block_pool   a rank like vLLM's: batch budget, cache, preemption
policy_replay_command, decision_log_reader,
logged_workload                                 `select-service replay`: logs as a workload
run_figures, replay_report                      results of runs and their presentation
block_streams                                   requests as chains of blocks
simple_routers, core_router                     simple routers, and the core as a router
replay_world                                    virtual time: clients, engines, events, delays

A seed determines everything, and no service uses this package. `scripts/bench/quality` compares
policies with the same engines.
"""
