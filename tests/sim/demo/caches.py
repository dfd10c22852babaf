"""Blocks that a simulated engine has cached."""

from select_service.sim.demo.prefix_cache import PrefixCache


def cached_keys(engine: PrefixCache) -> set[int]:
    """Return the keys of all cached blocks, referenced or not."""
    return {*engine._references, *engine._idle}
