"""Layouts of cache groups that are recorded: what the layers of a model keep, and how much memory.

Sizes and windows are those of public models where a name says so; the others cover each rule of
`docs/explanation/exactness.md` alone and in combination.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

DENSE_KINDS = ("full", "mla")


@dataclass(frozen=True)
class GroupOfLayers:
    """Layers with one block table.

    kind:       full, mla, window, window_mla, chunks or state
    size:       tokens per block
    length:     tokens of a window or a chunk
    is_draft:   layers of a draft that reads hidden states (EAGLE, MTP)
    heads:      number of heads; groups with other heads have another cache specification
    is_sharded: blocks are shared out over the ranks of decode context parallelism
    """

    kind: str
    size: int
    length: int | None = None
    is_draft: bool = False
    heads: int = 1
    is_sharded: bool = False


@dataclass(frozen=True)
class RecordedLayout:
    """Engine with several groups, and what its requests are.

    blocks:           blocks of the pool that all groups share
    unit:             tokens by which prefixes are named; None means the common divisor
    ahead:            tokens behind a block that its name covers
    drops:            the engine drops the last matched block of a draft
    retention:        `prefix_cache_retention_interval`; None keeps everything
    context_parallel: size of decode context parallelism
    checkpoint:       alignment of states that are saved within a prefill
    running:          requests at a time
    longest:          tokens of a conversation before a new one begins
    salts, adapters:  cache salts and adapters of requests
    """

    groups: tuple[GroupOfLayers, ...]
    blocks: int
    unit: int | None = None
    ahead: int = 0
    drops: bool = False
    retention: int | None = None
    context_parallel: int = 1
    checkpoint: int = 0
    running: int = 3
    longest: int = 1200
    salts: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    def size_of(self, group: GroupOfLayers) -> int:
        """Return the tokens per block as events state them."""
        return group.size * (self.context_parallel if group.is_sharded else 1)

    @property
    def sizes(self) -> list[int]:
        return [self.size_of(group) for group in self.groups]

    @property
    def unit_size(self) -> int:
        return self.unit or math.gcd(*self.sizes)

    @property
    def step_size(self) -> int:
        """Return the tokens at which all groups have the end of a block."""
        return math.lcm(*self.sizes)

    def facts(self) -> dict[str, Any]:
        """Return `block_size` and `kv_cache` of the engine's registration."""
        dense = [self.size_of(group) for group in self.groups if group.kind in DENSE_KINDS]
        facts: dict[str, Any] = {"block_size": max(dense, default=self.sizes[0])}
        drafts = [n for n, group in enumerate(self.groups) if group.is_draft]
        if self.drops:
            facts["eagle_drop"] = True
        if self.drops and drafts:
            facts["eagle_groups"] = drafts
            targets = {group for group in self.groups if not group.is_draft}
            facts["eagle_apart"] = all(
                replace(self.groups[n], is_draft=False) not in targets for n in drafts
            )
        if self.context_parallel > 1:
            facts["context_parallel"] = True
        if chunks := [group.length for group in self.groups if group.kind == "chunks"]:
            facts["chunk"] = chunks[0]
        if self.salts:
            facts["salted"] = True
        return facts

    def description(self) -> dict[str, Any]:
        """Return the layout as the first line of a recording has it."""
        return {**asdict(self), "facts": self.facts()}


def full(size: int = 16, **more: Any) -> GroupOfLayers:
    return GroupOfLayers("full", size, **more)


def window(length: int, size: int = 16, **more: Any) -> GroupOfLayers:
    return GroupOfLayers("window", size, length, **more)


def state(size: int = 64, **more: Any) -> GroupOfLayers:
    return GroupOfLayers("state", size, **more)


def chunks(length: int, size: int = 16) -> GroupOfLayers:
    return GroupOfLayers("chunks", size, length)


DEEPSEEK_V4 = (
    GroupOfLayers("mla", 256),
    GroupOfLayers("mla", 256, heads=2),
    GroupOfLayers("window_mla", 64, 128),
    GroupOfLayers("window_mla", 4, 8, heads=3),
    GroupOfLayers("window_mla", 8, 128, heads=4),
)
STATE_BESIDE_FULL = (full(64), state())
SALTS, ADAPTERS = ("tenant-a", "tenant-b"), ("adapter-a", "adapter-b")


def layout(*groups: GroupOfLayers, blocks: int, **more: Any) -> RecordedLayout:
    return RecordedLayout(groups, blocks, **more)


BOTH: dict[str, RecordedLayout] = {
    "full": layout(full(), blocks=260),
    "full_little_memory": layout(full(), blocks=110),
    "mla": layout(GroupOfLayers("mla", 64), blocks=80),
    "window_alone": layout(window(256), blocks=260),
    "full_and_window": layout(full(), window(128), blocks=480),
    "full_and_wide_window": layout(full(), window(1024), blocks=460),
    "window_first": layout(window(512), full(), blocks=440),
    "full_and_three_windows": layout(full(), *[window(128)] * 3, blocks=900),
    "full16_and_window32": layout(full(), window(512, 32), blocks=420),
    "full32_and_window16": layout(full(32), window(96), blocks=400),
    "two_windows": layout(full(), window(64), window(512), blocks=600),
    "full_and_chunks": layout(full(), chunks(128), blocks=420),
    "state_alone": layout(state(), blocks=40),
    "full_and_state": layout(*STATE_BESIDE_FULL, blocks=150),
    "full_and_state_little_memory": layout(*STATE_BESIDE_FULL, blocks=70),
    "state_first": layout(state(), full(64), blocks=150),
    "three_states_and_full": layout(state(), state(), state(), full(64), blocks=230),
    "states_of_two_kinds": layout(state(), state(heads=2), full(64), blocks=170),
    "full16_and_state64": layout(full(), state(), blocks=420),
    "full_window_and_state": layout(full(64), window(256, 64), state(), blocks=190),
    "full_and_window_crowded": layout(full(), window(256), blocks=130, running=8, longest=700),
    "full_and_state_crowded": layout(*STATE_BESIDE_FULL, blocks=40, running=8, longest=700),
    "full_and_window_salted": layout(full(), window(128), blocks=480, salts=SALTS),
    "full_and_state_salted": layout(*STATE_BESIDE_FULL, blocks=150, salts=SALTS),
    "window_first_salted": layout(window(128), full(), blocks=420, salts=SALTS),
    "finer_window_salted": layout(full(32), window(96), blocks=400, salts=SALTS),
    "full_and_window_adapters": layout(full(), window(128), blocks=480, adapters=ADAPTERS),
    "full_and_state_adapters": layout(*STATE_BESIDE_FULL, blocks=150, adapters=ADAPTERS),
    "drop": layout(full(), blocks=300, drops=True),
    "drop_little_memory": layout(full(), blocks=110, drops=True),
    "drop_and_window": layout(full(), window(256), blocks=460, drops=True),
    "drop_and_state": layout(*STATE_BESIDE_FULL, blocks=150, drops=True),
}
"""Layouts of both versions."""

NEWER: dict[str, RecordedLayout] = {
    "deepseek_v4": layout(*DEEPSEEK_V4, blocks=1100),
    "deepseek_v4_crowded": layout(*DEEPSEEK_V4, blocks=520, running=8, longest=700),
    "deepseek_v4_default_retention": layout(*DEEPSEEK_V4, blocks=1100, retention=0),
    "full_and_state_528": layout(full(528), state(528), blocks=30, longest=3000),
    "three_states_528_default_retention": layout(
        state(528), state(528), state(528), full(528), blocks=60, retention=0, longest=3000
    ),
    "state_inside_blocks": layout(*STATE_BESIDE_FULL, blocks=150, unit=16),
    "state_inside_blocks_little_memory": layout(*STATE_BESIDE_FULL, blocks=70, unit=16),
    "state_inside_blocks_crowded": layout(
        state(), state(heads=2), full(64), blocks=52, unit=16, running=8, longest=700
    ),
    "state_inside_blocks_528": layout(full(528), state(528), blocks=30, unit=48, longest=3000),
    "state_inside_blocks_checkpoints": layout(
        *STATE_BESIDE_FULL, blocks=150, unit=16, checkpoint=16
    ),
    "state_inside_blocks_salted": layout(*STATE_BESIDE_FULL, blocks=150, unit=16, salts=SALTS),
    "state_inside_blocks_adapters": layout(
        *STATE_BESIDE_FULL, blocks=150, unit=16, adapters=ADAPTERS
    ),
    "state_retention_512": layout(*STATE_BESIDE_FULL, blocks=150, retention=512),
    "state_default_retention": layout(state(), full(64), blocks=150, retention=0),
    "window_default_retention": layout(full(), window(128), blocks=420, retention=0),
    "wide_window_default_retention": layout(full(), window(1024), blocks=460, retention=0),
    "finer_window_retention_256": layout(full(32), window(128), blocks=400, retention=256),
    "full_and_state_context_parallel_2": layout(
        full(64, is_sharded=True), state(), blocks=130, context_parallel=2
    ),
    "full_and_state_context_parallel_4": layout(
        full(16, is_sharded=True), state(), blocks=130, context_parallel=4
    ),
    "ahead_little_memory": layout(full(), blocks=110, ahead=1),
    "ahead_and_window": layout(full(), window(256), blocks=460, ahead=1),
    "ahead_and_window_crowded": layout(
        full(), window(256), blocks=140, ahead=1, running=8, longest=700
    ),
    "ahead_and_state": layout(*STATE_BESIDE_FULL, blocks=150, ahead=1),
    "ahead_and_state_default_retention": layout(
        state(), full(64), blocks=150, ahead=1, retention=0
    ),
    "ahead_and_state_inside_blocks": layout(*STATE_BESIDE_FULL, blocks=150, unit=16, ahead=1),
    "ahead_deepseek_v4": layout(*DEEPSEEK_V4, blocks=1100, ahead=1),
    "ahead_of_three_tokens": layout(full(), blocks=300, ahead=3),
    "drop_and_draft": layout(
        full(), window(256), full(is_draft=True, heads=2), blocks=640, drops=True
    ),
    "drop_and_draft_of_equal_layers": layout(
        full(), window(256), full(is_draft=True), blocks=640, drops=True
    ),
    "drop_and_draft_window": layout(
        full(), window(256), window(256, is_draft=True, heads=2), blocks=640, drops=True
    ),
    "drop_state_and_draft": layout(
        state(), full(64), full(64, is_draft=True, heads=2), blocks=200, drops=True
    ),
    "drop_and_state_crowded": layout(
        *STATE_BESIDE_FULL, blocks=40, drops=True, running=8, longest=700
    ),
    "drop_and_state_inside_blocks": layout(*STATE_BESIDE_FULL, blocks=150, unit=16, drops=True),
    "drop_and_finer_window": layout(full(32), window(128), blocks=400, drops=True),
    "drop_deepseek_v4": layout(*DEEPSEEK_V4, blocks=1100, drops=True),
}
"""Layouts of vLLM 0.33 alone: retention, hits inside blocks, names that cover tokens behind."""

LAYOUTS: dict[str, dict[str, RecordedLayout]] = {"0.23.0": BOTH, "0.33.0": BOTH | NEWER}
