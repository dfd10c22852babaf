"""Toy engine with several cache groups: random prompts in, vLLM's events and reusable lengths out.

The engine keeps the blocks that the model keeps and publishes these blocks as vLLM does: groups in
the order of their numbers, dense groups every block, other groups a subset with the tokens of the
whole span.
"""

import hashlib

from indexer.hashing.engine_names import NameScheme, iterate_names
from tests.models.cache_groups_model import DENSE, FINE_KINDS, STATE, WINDOW, CacheGroupsModel


class GroupedEngine:
    """Engine that computes prompts.

    scheme: naming of prefixes; None means hashes that no other program can compute
    """

    def __init__(self, model: CacheGroupsModel, random, scheme: NameScheme | None = None):
        self.model, self.random, self.scheme = model, random, scheme
        self._keeps_all = False

    def name_of(self, prefix):
        """Return the name of a prefix of the model, which is the same in all groups."""
        end = prefix.index("|")
        tokens = [*prefix[:end], *prefix[end + 1 :]]
        if self.scheme is not None:
            return list(iterate_names(self.scheme, tokens))[-1]
        return int.from_bytes(hashlib.blake2b(bytes(tokens), digest_size=8).digest(), "big")

    def compute(self, prompt):
        """Compute a prompt behind the reusable prefix; return the batch of events."""
        reused = self.model.reusable_tokens(prompt)
        events = []
        for group in self.model.groups:
            events += self._publish(group, prompt, reused)
        return events

    def introduce(self, prompt):
        """Compute a prompt of which groups keep all possible blocks; return the events."""
        self._keeps_all = True
        events = self.compute(prompt)
        self._keeps_all = False
        return events

    def evict(self, holdings):
        """Remove one copy of each (group, prefix); return the batch of events."""
        events = []
        for number, prefix in holdings:
            self.model.remove(number, prefix)
            names = [self.name_of(prefix)]
            events.append({"type": "BlockRemoved", "block_hashes": names, "group_idx": number})
        return events

    def clear(self):
        self.model.clear()
        return [{"type": "AllBlocksCleared"}]

    def _publish(self, group, prompt, reused):
        size = group.size
        start = reused // size * size
        last = len(prompt) - self.model.ahead
        ends = list(range(start + size, last + 1, size))
        if not ends:
            return self._publish_end(group, prompt, last)
        kept = self._choose_ends(group, ends)
        run = [self._event(group, prompt, start, ends[-1], kept, size)] if kept else []
        return run + self._publish_end(group, prompt, last)

    def _choose_ends(self, group, ends):
        """Return the ends of the blocks that the group keeps."""
        if group.kind == STATE and not self._has_dense():
            return ends[-1:]
        if group.kind == DENSE or (self._keeps_all and group.kind != STATE):
            return ends
        if group.kind == STATE:
            return [end for end in ends if end == ends[-1] or self.random.random() < 0.3]
        if not self._has_dense():
            return ends
        # Tails that end where a hit can end.
        tails = [end for end in ends if end % self.model.alignment == 0]
        kept = set()
        for tail in tails:
            if tail == tails[-1] or self.random.random() < 0.5:
                length = self.random.randint(0, -(-group.length // group.size) + 1)
                kept |= {tail - k * group.size for k in range(length)}
        return [end for end in ends if end in kept]

    def _has_dense(self):
        return any(group.kind == DENSE for group in self.model.groups)

    def _publish_end(self, group, prompt, last):
        """Publish the end of the prompt inside a block, if hits end there."""
        model, unit = self.model, self.model.unit
        end = last // unit * unit
        if not model.is_fine or group.kind not in FINE_KINDS or end % group.size == 0:
            return []
        return [self._event(group, prompt, end - unit, end, [end], unit)]

    def _event(self, group, prompt, start, stop, kept, size):
        model = self.model
        prefixes = [model.prefix(prompt, end) for end in kept]
        for prefix in prefixes:
            model.store(group.number, prefix)
        event = {
            "type": "BlockStored",
            "block_hashes": [self.name_of(prefix) for prefix in prefixes],
            "parent_block_hash": self.name_of(model.prefix(prompt, start)) if start else None,
            "token_ids": list(prompt[start:stop]),
            "block_size": size,
            "group_idx": group.number,
            "kv_cache_spec_kind": group.kind,
        }
        if group.kind == WINDOW:
            event["kv_cache_spec_sliding_window"] = group.length
        if model.ahead:
            event["lookahead_token_ids"] = [list(prompt[end : end + model.ahead]) for end in kept]
        return event
