"""EDGE: a tiny prompt goes through an engine: are its blocks in the index afterwards?

The tokens are drawn, so no cache has the prompt, and its hashes are known before the engine says
anything.  One token is asked for.
"""

import asyncio
from random import SystemRandom
from time import monotonic

import numpy as np

from indexer.hashing.hashes import Hashes, block_hashes
from indexer.sockets.names import Names
from select_service.core.doctor.facts import Probed
from select_service.core.fleet.partition import Partition
from select_service.core.workers.catalog import Worker
from select_service.edge.health.requests import message
from select_service.edge.http_error import HttpError
from select_service.edge.http_post import post
from select_service.tls.kept import ClientTls

BLOCKS = 2
TOKENS_MAX = 1024
TOKEN_IDS = range(100, 1000)
"""That every vocabulary has, as words or parts of them."""
ANSWER_S = 10.0
EVENTS_S = 4.0
"""After the answer: engines publish between two steps."""
LOOK_S = 0.05
BYTES_MAX = 1 << 18
_random = SystemRandom()


async def probed(
    names: Names, tls: ClientTls | None, worker: Worker, partition: Partition
) -> Probed | None:
    """None: blocks are too large for a tiny prompt, or the worker cannot be asked.

    tls: as in `http_post`
    """
    endpoint, size = worker.given.endpoint, partition.block_size
    if endpoint is None or size > TOKENS_MAX:
        return None
    blocks = BLOCKS if BLOCKS * size < TOKENS_MAX else 1
    tokens = tuple(_random.choice(TOKEN_IDS) for _ in range(blocks * size + 1 + worker.is_eagle))
    error = await _sent(names, tls, endpoint, worker.key.model_name, tokens)
    if error is not None:
        return Probed(error=error)
    ids = np.array(tokens, np.uint32)
    path = block_hashes(ids, size, is_eagle=worker.is_eagle)
    begun = monotonic()
    found = await _awaited(partition, worker.worker_id, path)
    return Probed(blocks=blocks, found=found, waited_s=monotonic() - begun)


async def _sent(
    names: Names, tls: ClientTls | None, endpoint: str, model: str, tokens: tuple[int, ...]
) -> str | None:
    """Why there is no good answer."""
    wanted = message("plain", model, tokens, 1, None)
    url = endpoint.rstrip("/") + wanted.path
    try:
        reply = await post(
            names,
            url,
            wanted.content,
            wanted.headers,
            bytes_max=BYTES_MAX,
            timeout_s=ANSWER_S,
            tls=tls,
        )
    except HttpError as error:
        return str(error)
    if reply.status != 200:
        return f"HTTP status {reply.status}: {reply.body[:200].decode(errors='replace')}"
    return reply.fault


async def _awaited(partition: Partition, worker_id: int, path: Hashes) -> int:
    """Leading blocks that some rank of the worker has, once it has one."""
    until = monotonic() + EVENTS_S
    while True:
        found = await asyncio.to_thread(_found, partition, worker_id, path)
        if found or monotonic() > until:
            return found
        await asyncio.sleep(LOOK_S)


def _found(partition: Partition, worker_id: int, path: Hashes) -> int:
    matched = partition.index.match(path)
    slots = [slot for slot in partition.table.slots_of(worker_id) if slot < len(matched)]
    return int(matched[slots].max()) if slots else 0
