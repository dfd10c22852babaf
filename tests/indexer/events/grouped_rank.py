"""Rank with several cache groups, from the events of its engine to answers about prompts.

An event is a dictionary with the fields of vLLM's KV events.
"""

import msgspec
import numpy as np

from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, adopt_blocks
from indexer.events.batch_applier import BatchApplier
from indexer.events.payload_parser import parse_batch
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.hashing.engine_names import iterate_names
from indexer.index.kv_cache_facts import NO_FACTS
from indexer.index.prefix_index import PrefixIndex, PromptUnits
from indexer.index.reuse_layout import EXACT
from indexer.tiers import Tier

RANKS = {(1, 0): 0}


class GroupedRank:
    """Slot of an index that receives batches of events.

    writer: writer of an open slot of the index; None means a new slot
    """

    def __init__(self, block_size, facts=NO_FACTS, index=None, *, is_eagle=False, writer=None):
        self.index = index or PrefixIndex(100_000)
        self.writer = writer or self.index.open_slot()
        self.applier = BatchApplier(0, block_size, is_eagle, True, facts)
        self.applier.groups.begin_groups(self.writer)
        self.block_size, self.is_eagle = block_size, is_eagle

    @property
    def groups(self):
        return self.writer.cache_groups

    def apply_batch(self, events):
        batch = parse_batch(msgspec.msgpack.encode([0.0, events, None]))
        assert batch.bad_events == 0, batch.last_error
        for _ in self.applier.apply_in_steps(batch, {0: self.writer}):
            pass

    def restart(self, read_again):
        """Continue in a new index with the blocks of a dump.

        read_again: function of a dumped partition that returns the partition as a reader returns
        it
        """
        partition = DumpedPartition("m:t", self.block_size, RANKS, self.index.snapshot())
        assert self.writer.slot == 0
        facts, counted = self.applier.groups._facts, self.applier.copies.is_counted
        self.index = PrefixIndex(100_000)
        self.writer = self.index.open_slot()
        self.writer.is_filling = True
        adopt_blocks([Adoption(read_again(partition), (1, 0), self.writer)])
        self.applier = BatchApplier(0, self.block_size, self.is_eagle, counted, facts)
        self.applier.groups.begin_groups(self.writer)

    def answer(self, prompt, lora=None, salt=None, *, is_blind=False):
        """Return the reusable tokens, and whether their number is an upper bound.

        is_blind: whether the match gets only the block hashes and the length of the prompt
        """
        path = self._hash_blocks(prompt, self.block_size, lora, salt)
        units = self._units_of(prompt, lora, salt)
        match = self.index.match_reuse(path, PromptUnits(len(prompt)) if is_blind else units)
        slot, size = self.writer.slot, self.block_size
        blocks = int(match.matched[slot, Tier.GPU])
        if self.groups is None or self.groups.layout() is None:
            # The engine computes the last token in any case.
            return min(blocks, (len(prompt) - 1) // size) * size, False
        return blocks * size + int(match.inside[slot]), int(match.certainty[slot]) != EXACT

    def _hash_blocks(self, prompt, size, lora, salt):
        return compute_block_hashes(
            np.array(prompt, np.uint32),
            size,
            lora_name=lora,
            lookahead=max(1, self.index.lookahead) if self.is_eagle else 0,
            cache_salt=salt,
        )

    def _units_of(self, prompt, lora, salt):
        """Return the units of a prompt that a match needs besides the blocks."""
        tokens, units = np.array(prompt, np.uint32), self.index.units_per_block
        if units < 2:
            return PromptUnits(len(tokens), tokens)
        hashes = self._hash_blocks(prompt, self.block_size // units, lora, None)
        names, scheme = None, self.groups and self.groups.scheme
        if scheme and lora is None:
            chain = iterate_names(scheme, list(prompt), cache_salt=salt)
            names = np.array(list(chain), np.uint64)
        return PromptUnits(len(tokens), tokens, hashes, names)
