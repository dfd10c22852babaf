"""Builders of decision logs as a service writes them."""

import msgspec
import numpy as np

from select_service.core.analysis.decision_log_lines import (
    LoggedDecision,
    LoggedFleet,
    LoggedRank,
    LogHead,
    blocks_of_hash,
)
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS

BLOCK_SIZE = 16
EVERY = blocks_of_hash(BLOCK_SIZE)
assert EVERY * BLOCK_SIZE == BLOCK_TOKENS


def a_fleet(n=4, model="m", **fields):
    given = {"total_kv_blocks": None, "max_num_batched_tokens": None} | fields
    ranks = [LoggedRank(worker_id=number, dp_rank=0, **given) for number in range(n)]
    return LoggedFleet(model, "t", BLOCK_SIZE, ranks)


def a_decision(number, at, prompt, isl_tokens, output_tokens=None, **fields):
    """Return a logged decision; `prompt` has the hashes of the prompt, uint64[n]."""
    text = np.asarray(prompt, np.uint64).astype(">u8").tobytes().hex()
    given = {"model_name": "m", "tenant_id": "t", "block_size": BLOCK_SIZE, "hash_blocks": EVERY}
    return LoggedDecision(
        **given
        | {"decision": number, "at": at, "policy": "work", "isl_tokens": isl_tokens}
        | {"hashes": text, "worker_id": 1, "dp_rank": 0, "candidates": 4, "waited_s": 0.0}
        | {"reserved": True, "output_tokens": output_tokens}
        | fields
    )


def turns_as_decisions(turns, at, seed=0):
    """Return decisions of the turns; blocks have random names, which only prompts reveal."""
    most = max(int(turn.chain.max()) for turn in turns)
    names = np.random.default_rng(seed).integers(0, 2**63, most + 1).astype(np.uint64)
    return [
        a_decision(
            number,
            when,
            names[turn.chain[: turn.prompt_tokens // BLOCK_TOKENS]],
            turn.prompt_tokens,
            turn.output_tokens,
        )
        for number, (turn, when) in enumerate(zip(turns, at, strict=True), 1)
    ]


def write(path, lines):
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in [LogHead(), *lines]))
    return path
