"""Logged decisions as a workload of the simulated engines, and the logged ranks as their fleet."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from select_service.core.decision_lines import LoggedDecision, LoggedFleet
from select_service.core.decision_log import as_numbers
from select_service.replaying.hardware import BLOCK_TOKENS, PARAMETERS, Fleet, Hardware
from select_service.replaying.log_files import Logged, ReplayError
from select_service.replaying.streams import Turn, Workload

OUTPUT_TOKENS = 128
"""Of an answer, where no answer of the log has a length."""
CELLS_MAX = 1 << 27
"""Blocks of all prompts times ranks; each takes 12 bytes."""


class Given(NamedTuple):
    """What the log does not know.

    speed: requests come so many times faster
    prefill_tokens_per_s: of a rank; None: as its hardware does
    """

    hardware: Hardware
    speed: float = 1.0
    prefill_tokens_per_s: float | None = None


class Traffic(NamedTuple):
    """too_long: requests that are left out, since they fit into no rank's cache"""

    workload: Workload
    fleet: Fleet
    too_long: int
    guessed_outputs: int


def traffic_of(logged: Logged, given: Given) -> Traffic:
    """Raises ReplayError when nothing fits, or it is too much."""
    fleet = fleet_of(logged.fleet, given)
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
        raise ReplayError("no request fits into the cache of every rank")
    decisions = [each for each, _ in kept]
    turns, n_blocks = _turns([output for _, output in kept], decisions)
    if n_blocks * len(fleet) > CELLS_MAX:
        raise ReplayError(
            f"{n_blocks} blocks on {len(fleet)} ranks are too many: give fewer --requests"
        )
    arrivals = np.array([each.at - each.waited_s for each in decisions])
    units = np.maximum.accumulate(arrivals - arrivals[0]) / given.speed
    workload = Workload(tuple((turn,) for turn in turns), units, n_blocks)
    guessed = sum(each.output_tokens is None for each in decisions)
    return Traffic(workload, fleet, len(logged.decisions) - len(kept), guessed)


def fleet_of(logged: LoggedFleet, given: Given) -> Fleet:
    """What ranks say of themselves, and else the given hardware."""
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


def _turns(outputs: Sequence[int], decisions: Sequence[LoggedDecision]) -> tuple[list[Turn], int]:
    """Each with its chain, and how many different blocks there are."""
    blocks = _Blocks()
    prompts = [blocks.of_prompt(decision) for decision in decisions]
    totals = [
        (decision.isl_tokens + output) // BLOCK_TOKENS
        for decision, output in zip(decisions, outputs, strict=True)
    ]
    answers = _answers(prompts, totals)
    turns = []
    for decision, prompt, output, total, answer in zip(
        decisions, prompts, outputs, totals, answers, strict=True
    ):
        chain = prompt + answer
        chain += blocks.fresh(total - len(chain))
        turns.append(Turn(np.array(chain, np.int32), decision.isl_tokens, output))
    return turns, blocks.count


class _Blocks:
    """Numbers of blocks: one for all prompts that are equal up to there."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[tuple[int, int], int] = {}

    def fresh(self, n: int) -> list[int]:
        """Blocks that nobody else has."""
        self.count += n
        return list(range(self.count - n, self.count))

    def of_prompt(self, decision: LoggedDecision) -> list[int]:
        """Its full blocks: known by the first hash that covers them, those behind by nothing."""
        hashes = as_numbers(decision.hashes).tolist()
        hash_tokens = decision.block_size * decision.hash_blocks
        n_full = decision.isl_tokens // BLOCK_TOKENS
        chain: list[int] = []
        for at in range(n_full):
            covering = -(-(at + 1) * BLOCK_TOKENS // hash_tokens) - 1
            if covering >= len(hashes):
                break
            key = hashes[covering], at
            if key not in self._known:
                self._known[key] = self.count
                self.count += 1
            chain.append(self._known[key])
        return chain + self.fresh(n_full - len(chain))


def _answers(prompts: Sequence[list[int]], totals: Sequence[int]) -> list[list[int]]:
    """The blocks of each answer, as far as the next prompt that goes on from it shows them.

    A prompt that has all full blocks of an earlier one is taken for the next turn of it: behind
    them it has the answer.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    last_with: dict[int, int] = {}
    for number, prompt in enumerate(prompts):
        for at in range(len(prompt) - 1, -1, -1):
            earlier = last_with.get(prompt[at])
            if earlier is not None:
                if not answers[earlier]:
                    answers[earlier] = prompt[at + 1 : totals[earlier]]
                break
        if prompt:
            last_with[prompt[-1]] = number
    return answers
