"""Changes of the catalog as the KV event listeners receive them."""

from typing import NamedTuple

from indexer.dumps.recovered_blocks import Adoption
from indexer.events.kv_event_source import KvSource
from indexer.index.kv_cache_facts import NO_FACTS, HashFacts, KvCacheFacts
from indexer.index.slot_writer import SlotWriter
from select_service.core.identity import Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.kv_cache import KvCacheFields


class CatalogChanges(NamedTuple):
    """Changes since the last call, to be applied in this order; applying them is slow.

    renewed: index slots of ranks with a new event source, to be cleared completely; until then they
        accept no events
    adoptions: recovered blocks for ranks without running listeners
    sources: required listeners by worker id, possibly empty
    retired: index slots of ranks that left, to be closed
    """

    renewed: list[SlotWriter]
    adoptions: list[Adoption]
    sources: dict[int, list[KvSource]]
    retired: list[SlotWriter]

    def __bool__(self) -> bool:
        return any(self)


def list_event_sources(worker: RegisteredWorker, partition: Partition) -> list[KvSource]:
    """Return the required listeners of a schedulable worker."""
    registration = worker.registration
    writers = {rank.dp_rank: partition.table.writer_of(rank) for rank in worker.list_ranks()}
    facts = convert_cache_facts(registration.kv_cache)
    sources = []
    for dp_rank, endpoint in worker.kv_endpoints().items():
        if endpoint is None:
            continue  # its index is assumed
        sources.append(
            KvSource(
                worker_id=worker.worker_id,
                dp_rank=dp_rank,
                endpoint=endpoint,
                replay_endpoint=worker.replay_endpoint(dp_rank),
                block_size=partition.block_size,
                is_eagle=partition.is_eagle,
                counted=registration.kv_event_semantics != "set",
                writers=writers,
                server_key=registration.curve_server_key,
                facts=facts,
                total_blocks=registration.total_kv_blocks,
            )
        )
    return sources


def convert_cache_facts(given: KvCacheFields | None) -> KvCacheFacts:
    """Return the registered facts as the index uses them."""
    if given is None:
        return NO_FACTS
    hashing = given.hash
    return KvCacheFacts(
        eagle_drop=bool(given.eagle_drop),
        eagle_groups=None if given.eagle_groups is None else tuple(sorted(given.eagle_groups)),
        eagle_apart=given.eagle_apart,
        chunk=given.chunk,
        context_parallel=given.context_parallel,
        replay=given.replay,
        salted=given.salted,
        hash=None if hashing is None else HashFacts(hashing.algorithm, hashing.seed),
        certainty="at_most" if given.certainty == "at_most" else None,
        may_drop=bool(given.speculates) and given.eagle_drop is None,
        groups=given.groups,
    )


def ranks_with_new_source(old: RegisteredWorker, new: RegisteredWorker) -> list[Rank]:
    """Return common ranks with a changed event source."""
    before, after = old.kv_endpoints(), new.kv_endpoints()
    if before == after:
        return []
    return [
        rank
        for rank, endpoint in zip(new.list_ranks(), after.values(), strict=True)
        if rank.dp_rank in before and before[rank.dp_rank] != endpoint
    ]
