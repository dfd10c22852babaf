"""Logged decisions as a workload of the simulated engines, with the logged ranks as their fleet."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from select_service.core.analysis.decision_log import parse_hashes
from select_service.core.analysis.decision_log_lines import LoggedDecision, LoggedFleet
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, PARAMETERS, Fleet, Hardware
from select_service.sim.replay.decision_log_reader import LoggedRequests, ReplayError

OUTPUT_TOKENS = 128
"""Length of an answer, in tokens, if no answer of the log has a length."""
CELLS_MAX = 1 << 27
"""Limit of blocks of all prompts times ranks; each takes 12 bytes."""


class ReplayAssumptions(NamedTuple):
    """Assumptions beside the log.

    speed: factor by which requests come faster
    prefill_tokens_per_s: speed of a rank; None means the speed of its hardware
    """

    hardware: Hardware
    speed: float = 1.0
    prefill_tokens_per_s: float | None = None


class LoggedWorkload(NamedTuple):
    """Workload and fleet of a log. too_long: omitted requests, too long for the cache of a rank."""

    workload: ReplayWorkload
    fleet: Fleet
    too_long: int
    guessed_outputs: int


def make_workload(logged: LoggedRequests, given: ReplayAssumptions) -> LoggedWorkload:
    """Return the traffic of a log.

    Raises ReplayError if no request fits, or there are too many.
    """
    fleet = make_fleet(logged.fleet, given)
    room = (min(hardware.kv_blocks for hardware in fleet) - 1) * BLOCK_TOKENS
    known = [each.output_tokens for each in logged.decisions if each.output_tokens]
    usual = int(median(known)) if known else OUTPUT_TOKENS
    outputs = [each.output_tokens or usual for each in logged.decisions]
    kept = [
        (each, output)
        for each, output in zip(logged.decisions, outputs, strict=True)
        if each.isl_tokens + output < room
    ]
    if not kept:
        raise ReplayError(
            "no request fits into the cache of every rank: check the blocks of the ranks"
        )
    decisions = [each for each, _ in kept]
    turns, n_blocks = _make_requests([output for _, output in kept], decisions)
    # Every simulated rank has arrays over all blocks.
    if n_blocks * len(fleet) > CELLS_MAX:
        raise ReplayError(
            f"{n_blocks} blocks on {len(fleet)} ranks exceed the limit: give fewer --requests"
        )
    arrivals = np.array([each.at - each.waited_s for each in decisions])
    # Arrivals of several selectors may be out of order by a clock difference.
    units = np.maximum.accumulate(arrivals - arrivals[0]) / given.speed
    workload = ReplayWorkload(tuple((turn,) for turn in turns), units, n_blocks)
    guessed = sum(each.output_tokens is None for each in decisions)
    return LoggedWorkload(workload, fleet, len(logged.decisions) - len(kept), guessed)


def make_fleet(logged: LoggedFleet, given: ReplayAssumptions) -> Fleet:
    """Return the logged ranks, with the given hardware for unknown values."""
    hardware = given.hardware
    if given.prefill_tokens_per_s is not None:
        hardware = hardware._replace(flops=given.prefill_tokens_per_s * 2 * PARAMETERS)
    return tuple(
        hardware._replace(
            declared_blocks=max(2, (rank.total_kv_blocks or 0) * logged.block_size // BLOCK_TOKENS)
            if rank.total_kv_blocks
            else 0,
            batch_tokens=rank.max_num_batched_tokens or hardware.batch_tokens,
        )
        for rank in logged.ranks
    )


def _make_requests(
    outputs: Sequence[int], decisions: Sequence[LoggedDecision]
) -> tuple[list[ReplayRequest], int]:
    """Return each request with its chain, and the number of different blocks."""
    blocks = _LoggedBlocks()
    prompts = [blocks.blocks_of_prompt(decision) for decision in decisions]
    totals = [
        (decision.isl_tokens + output) // BLOCK_TOKENS
        for decision, output in zip(decisions, outputs, strict=True)
    ]
    answers = _answer_blocks(prompts, totals)
    turns = []
    for decision, prompt, output, total, answer in zip(
        decisions, prompts, outputs, totals, answers, strict=True
    ):
        chain = prompt + answer
        chain += blocks.new_blocks(total - len(chain))
        turns.append(ReplayRequest(np.array(chain, np.int32), decision.isl_tokens, output))
    return turns, blocks.count


class _LoggedBlocks:
    """Numbers of blocks: one for all prompts that are equal up to the block."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[tuple[int, int], int] = {}

    def new_blocks(self, n: int) -> list[int]:
        """Return new blocks."""
        self.count += n
        return list(range(self.count - n, self.count))

    def blocks_of_prompt(self, decision: LoggedDecision) -> list[int]:
        """Return the full blocks of a prompt.

        The first hash that covers a block identifies the block; blocks without a hash are new.
        """
        hashes = parse_hashes(decision.hashes).tolist()
        hash_tokens = decision.block_size * decision.hash_blocks
        n_full = decision.isl_tokens // BLOCK_TOKENS
        chain: list[int] = []
        for at in range(n_full):
            covering = -(-(at + 1) * BLOCK_TOKENS // hash_tokens) - 1
            if covering >= len(hashes):
                break
            # The position distinguishes the blocks that a coarse hash covers.
            key = hashes[covering], at
            if key not in self._known:
                self._known[key] = self.count
                self.count += 1
            chain.append(self._known[key])
        return chain + self.new_blocks(n_full - len(chain))


def _answer_blocks(prompts: Sequence[list[int]], totals: Sequence[int]) -> list[list[int]]:
    """Return the blocks of each answer that the next prompt of its conversation reveals.

    A prompt with all full blocks of an earlier prompt counts as its next turn: the answer follows
    behind them.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    last_with: dict[int, int] = {}
    for number, prompt in enumerate(prompts):
        for at in range(len(prompt) - 1, -1, -1):
            earlier = last_with.get(prompt[at])
            if earlier is not None:
                # The first continuation wins; later branches share the prompt only.
                if not answers[earlier]:
                    answers[earlier] = prompt[at + 1 : totals[earlier]]
                break
        if prompt:
            last_with[prompt[-1]] = number
    return answers
