"""Probe that sends a tiny prompt through an engine and checks that its blocks reach the index.

The tokens are random, so no cache contains the prompt, and the block hashes are known in advance.
The request asks for one output token.
"""

import asyncio
from random import SystemRandom
from time import monotonic

import numpy as np

from indexer.hashing.block_hashing import Hashes, compute_block_hashes
from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.health.canary_requests import make_canary_request
from select_service.adapters.probe_http import TimedHttpClient
from select_service.core.doctor.facts import ProbeFacts
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls

BLOCKS = 2
TOKENS_MAX = 1024
TOKEN_IDS = range(100, 1000)
"""Token ids that every vocabulary contains, as words or parts of words."""
ANSWER_S = 10.0
EVENTS_S = 4.0
"""Time limit for the KV events after the response, in seconds: engines publish between two steps.
"""
LOOK_S = 0.05
BYTES_MAX = 1 << 18
_random = SystemRandom()


async def probe_engine(
    names: Resolver, tls: ClientTls | None, worker: RegisteredWorker, partition: Partition
) -> ProbeFacts | None:
    """Send the probe; return its result.

    tls: see `probe_http`
    None means that the block size is too large for a tiny prompt or the worker has no endpoint.
    """
    endpoint, size = worker.registration.endpoint, partition.block_size
    if endpoint is None or size > TOKENS_MAX:
        return None
    blocks = BLOCKS if BLOCKS * size < TOKENS_MAX else 1
    # Random tokens: no cache of any engine can hold a prefix of this prompt.
    tokens = tuple(_random.choice(TOKEN_IDS) for _ in range(blocks * size + 1 + worker.is_eagle))
    error = await _send_prompt(names, tls, endpoint, worker.key.model_name, tokens)
    if error is not None:
        return ProbeFacts(error=error)
    ids = np.array(tokens, np.uint32)
    path = compute_block_hashes(ids, size, lookahead=int(worker.is_eagle))
    begun = monotonic()
    found = await _wait_for_blocks(partition, worker.worker_id, path)
    return ProbeFacts(blocks=blocks, found=found, waited_s=monotonic() - begun)


async def _send_prompt(
    names: Resolver, tls: ClientTls | None, endpoint: str, model: str, tokens: tuple[int, ...]
) -> str | None:
    """Send the prompt; return the error, or None after a good response."""
    wanted = make_canary_request("plain", model, tokens, 1, None)
    url = endpoint.rstrip("/") + wanted.path
    try:
        reply = await TimedHttpClient(names, tls).post(
            url, wanted.content, wanted.headers, bytes_max=BYTES_MAX, timeout_s=ANSWER_S
        )
    except HttpError as error:
        return str(error)
    if reply.status != 200:
        return f"HTTP status {reply.status}: {reply.body[:200].decode(errors='replace')}"
    return reply.fault


async def _wait_for_blocks(partition: Partition, worker_id: int, path: Hashes) -> int:
    """Wait for the first blocks on a rank of the worker.

    Return the number of leading blocks found.
    """
    until = monotonic() + EVENTS_S
    while True:
        found = await asyncio.to_thread(_count_found_blocks, partition, worker_id, path)
        if found or monotonic() > until:
            return found
        await asyncio.sleep(LOOK_S)


def _count_found_blocks(partition: Partition, worker_id: int, path: Hashes) -> int:
    matched = partition.index.match(path)
    slots = [slot for slot in partition.table.slots_of(worker_id) if slot < len(matched)]
    return int(matched[slots].max()) if slots else 0
