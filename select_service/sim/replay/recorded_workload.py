"""Recorded requests as a workload of simulated engines."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from select_service.core.analysis.decision_log import parse_hashes
from select_service.core.analysis.decision_log_lines import LoggedDecision, LoggedFleet
from select_service.files.request_trace import RecordedRequest
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, PARAMETERS, Fleet, Hardware
from select_service.sim.replay.decision_log_reader import ReplayError

OUTPUT_TOKENS = 128
"""Length of an answer, in tokens, if no answer of the log has a length."""
CELLS_MAX = 1 << 27
"""Limit of blocks of all prompts times ranks; each takes 12 bytes."""


class ReplayAssumptions(NamedTuple):
    """Assumptions beside the records.

    speed: factor by which requests come faster
    prefill_tokens_per_s: speed of a rank; None means the speed of its hardware
    """

    hardware: Hardware
    speed: float = 1.0
    prefill_tokens_per_s: float | None = None

    def adjust_hardware(self) -> Hardware:
        """Return the hardware with the given speed."""
        if self.prefill_tokens_per_s is None:
            return self.hardware
        return self.hardware._replace(flops=self.prefill_tokens_per_s * 2 * PARAMETERS)


class RecordedWorkload(NamedTuple):
    """Workload and fleet. too_long: omitted requests, too long for the cache of a rank."""

    workload: ReplayWorkload
    fleet: Fleet
    too_long: int
    guessed_outputs: int


def make_workload(
    requests: Sequence[RecordedRequest], fleet: Fleet, speed: float = 1.0
) -> RecordedWorkload:
    """Return the workload of requests in order of arrival.  speed: factor on their rate

    Raises ReplayError if no request fits, or there are too many.
    """
    room = (min(hardware.kv_blocks for hardware in fleet) - 1) * BLOCK_TOKENS
    known = [each.output_tokens for each in requests if each.output_tokens]
    usual = int(median(known)) if known else OUTPUT_TOKENS
    outputs = [
        usual if each.output_tokens is None else max(1, each.output_tokens) for each in requests
    ]
    kept = [
        (each, output)
        for each, output in zip(requests, outputs, strict=True)
        if each.prompt_tokens + output < room
    ]
    if not kept:
        raise ReplayError(
            "no request fits into the cache of every rank: check the blocks of the ranks"
        )
    records = [each for each, _ in kept]
    turns, n_blocks = _make_requests([output for _, output in kept], records)
    # Every simulated rank has arrays over all blocks.
    if n_blocks * len(fleet) > CELLS_MAX:
        raise ReplayError(
            f"{n_blocks} blocks on {len(fleet)} ranks exceed the limit: give fewer --requests"
        )
    arrivals = np.array([each.at_s for each in records])
    # Arrivals of several selectors may be out of order by a clock difference.
    units = np.maximum.accumulate(arrivals - arrivals[0]) / speed
    workload = ReplayWorkload(tuple((turn,) for turn in turns), units, n_blocks)
    guessed = sum(each.output_tokens is None for each in records)
    return RecordedWorkload(workload, fleet, len(requests) - len(kept), guessed)


def recorded_requests(decisions: Sequence[LoggedDecision]) -> list[RecordedRequest]:
    """Return the requests of decisions."""
    return [
        RecordedRequest(
            each.at - each.waited_s,
            each.isl_tokens,
            each.output_tokens,
            parse_hashes(each.hashes).tolist(),
            each.block_size * each.hash_blocks,
        )
        for each in decisions
    ]


def make_fleet(logged: LoggedFleet, given: ReplayAssumptions) -> Fleet:
    """Return the logged ranks, with the given hardware for unknown values."""
    hardware = given.adjust_hardware()
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
    outputs: Sequence[int], records: Sequence[RecordedRequest]
) -> tuple[list[ReplayRequest], int]:
    """Return each request with its chain, and the number of different blocks."""
    blocks = RecordedBlocks()
    prompts = [blocks.blocks_of_prompt(each) for each in records]
    totals = [
        (each.prompt_tokens + output) // BLOCK_TOKENS
        for each, output in zip(records, outputs, strict=True)
    ]
    answers = _answer_blocks(prompts, totals)
    turns = []
    for record, prompt, output, total, answer in zip(
        records, prompts, outputs, totals, answers, strict=True
    ):
        chain = prompt + answer
        chain += blocks.new_blocks(total - len(chain))
        turns.append(ReplayRequest(np.array(chain, np.int32), record.prompt_tokens, output))
    return turns, blocks.count


class RecordedBlocks:
    """Numbers of blocks: one for all prompts that are equal up to the block."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.count = 0
        self._block_tokens = block_tokens
        self._known: dict[tuple[int, int], int] = {}

    def new_blocks(self, n: int) -> list[int]:
        """Return new blocks."""
        self.count += n
        return list(range(self.count - n, self.count))

    def blocks_of_prompt(self, record: RecordedRequest) -> list[int]:
        """Return the full blocks of a prompt.

        The first key that covers a block identifies the block; blocks without a key are new.
        """
        n_full = record.prompt_tokens // self._block_tokens
        chain: list[int] = []
        for at in range(n_full):
            covering = -(-(at + 1) * self._block_tokens // record.key_tokens) - 1
            if covering >= len(record.keys):
                break
            # The position distinguishes the blocks that a coarse key covers.
            key = record.keys[covering], at
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
