"""Facts about an engine's KV cache that events do not show, from the worker's registration."""

import msgspec


class HashFacts(msgspec.Struct, frozen=True):
    """How the engine names prefixes: the algorithm, and the seed of the chain (PYTHONHASHSEED)."""

    algorithm: str | None = None
    seed: str | None = None


class KvCacheFacts(msgspec.Struct, frozen=True):
    """Facts of a registration; every default is right for an engine without speculation.

    eagle_drop:       the engine drops the last matched block of the draft (EAGLE, MTP)
    eagle_groups:     groups of the draft's layers; None: all groups drop
    eagle_apart:      the draft's layers have a separate cache spec
    chunk:            tokens of a chunk of chunked local attention
    context_parallel: decode context parallelism is above 1
    replay:           tokens that are computed again on a hit; a shorter or equal prefix is no hit
    salted:           requests may have cache salts
    certainty:        "at_most" if the engine's events do not show all that limits a hit
    may_drop:         the engine speculates, and whether blocks are dropped is unknown
    groups:           number of cache groups that publish events; None if unknown
    """

    eagle_drop: bool = False
    eagle_groups: tuple[int, ...] | None = None
    eagle_apart: bool = True
    chunk: int | None = None
    context_parallel: bool = False
    replay: int = 0
    salted: bool = False
    hash: HashFacts | None = None
    certainty: str | None = None
    may_drop: bool = False
    groups: int | None = None


NO_FACTS = KvCacheFacts()
