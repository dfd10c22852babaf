"""Naive cache of a recorded engine: bags of names, and the rule of `cache_groups_model`."""

from collections import Counter

from indexer.hashing.engine_names import NameScheme, iterate_names
from tests.models.cache_groups_model import (
    CHUNKED,
    DENSE,
    STATE,
    WINDOW,
    CacheGroupsModel,
    GroupModel,
)

KINDS = {
    "full": DENSE,
    "mla": DENSE,
    "window": WINDOW,
    "window_mla": WINDOW,
    "swa": WINDOW,
    "swamla": WINDOW,
    "state": STATE,
    "mamba": STATE,
    "chunks": CHUNKED,
    "chunked": CHUNKED,
}
"""Kinds of groups by the words in recordings."""
SEED = "vllm-none-hash"
STORED_GROUP, REMOVED_GROUP = 9, 3
"""Group positions in events that are arrays, as vLLM 0.23 sends."""


def read_event(event):
    """Return type, names and group of an event, which vLLM 0.23 sends as an array."""
    if isinstance(event, dict):
        return event["type"], event.get("block_hashes", []), event.get("group_idx") or 0
    at = STORED_GROUP if event[0] == "BlockStored" else REMOVED_GROUP
    return event[0], event[1] if len(event) > 1 else [], event[at] if len(event) > at else 0


def group_of(number, row, sharded):
    """Return a group of a recording's first line."""
    is_sharded = row.get("is_sharded", row.get("dcp", False))
    size = row["size"] * (sharded if is_sharded else 1)
    length = row.get("length") or row.get("window") or row.get("chunk") or 0
    return GroupModel(number, KINDS[row["kind"]], size, length)


class RecordedCache(CacheGroupsModel):
    """Cache of one life of an engine, fed with all events, including events without a receiver."""

    def __init__(self, about):
        """Read the groups of a recording.

        about: first line of a recording
        """
        sharded = about.get("context_parallel", 1)
        groups = [group_of(number, row, sharded) for number, row in enumerate(about["groups"])]
        ahead, facts = about["ahead"], about["facts"]
        unit = about["unit"] or min(group.size for group in groups)
        drafts = facts.get("eagle_groups")
        drops = facts.get("eagle_drop", False)
        super().__init__(groups, unit, ahead, drops, drafts and tuple(drafts))
        self._scheme = NameScheme(about.get("names", "sha256"), SEED, unit, ahead)
        self._names = []

    def apply(self, events):
        for event in events:
            kind, names, group = read_event(event)
            copies = self.held.setdefault(group, Counter())
            if kind == "AllBlocksCleared":
                self.clear()
            elif kind == "BlockStored":
                copies.update(names)
            else:
                copies.subtract(names)

    def reusable(self, prompt, salt=None):
        """Return the tokens of a prompt that the engine would reuse."""
        self._names = list(iterate_names(self._scheme, prompt, cache_salt=salt))
        return self.reusable_tokens(prompt)

    def _holds(self, group, prompt, end):
        at = end // self.unit - 1
        copies = self.held.get(group.number, Counter())
        return end % self.unit == 0 and at < len(self._names) and copies[self._names[at]] > 0
