"""Engine simulator of the demo and of replays: ranks, virtual time and routers.

gpu_hardware, scheduler_engine, kv_block_pool   a rank like vLLM's: batch budget, cache, preemption
block_streams, text_streams                     requests as chains of blocks
block_catalog, prefix_cache                     blocks of tokens, and KV events in vLLM's format
replay_world                                    virtual time: clients, engines, events, delays
host_cache                                      host tier of a rank
simple_routers, prefix_tree_router, core_router simple routers, and the core as a router

A seed determines everything, and no service uses this package. `scripts/bench/quality` compares
policies with the same engines.
"""
