"""Naive twin of the assumed blocks of one rank: a list of prefixes, from the oldest use."""

from dataclasses import dataclass, field


@dataclass
class AssumedModel:
    """Assumed blocks of one rank.

    uses: pairs of prefix and time of the last use, the oldest first; a prefix is a tuple of blocks
    """

    capacity: int
    uses: list = field(default_factory=list)

    def touch(self, prompt, now):
        """Mark every prefix of a prompt as used now, the longest first."""
        for length in range(len(prompt), 0, -1):
            prefix = tuple(prompt[:length])
            self.uses = [use for use in self.uses if use[0] != prefix]
            self.uses.append((prefix, now))

    def evict(self, live, now):
        """Remove the oldest prefixes beyond the capacity; each prefix is visited once.

        Live prefixes count as used now.
        """
        for _ in range(len(self.uses)):
            if len(self.uses) <= self.capacity:
                return
            prefix, _ = self.uses.pop(0)
            if self.is_live(prefix, live):
                self.uses.append((prefix, now))

    def expire(self, before):
        while self.uses and self.uses[0][1] < before:
            self.uses.pop(0)

    def clear(self, live, at, now):
        """Remove prefixes last used at `at` or before.

        live: prompts in use; None means that prefixes in use are removed, too
        """
        for prefix, used_at in list(self.uses):
            if used_at > at:
                break
            self.uses.pop(0)
            if live is not None and self.is_live(prefix, live):
                self.uses.append((prefix, now))

    def forget(self, prompt, at):
        prefixes = {tuple(prompt[:length]) for length in range(1, len(prompt) + 1)}
        self.uses = [use for use in self.uses if use[0] not in prefixes or use[1] > at]

    def match(self, prompt):
        held = {prefix for prefix, _ in self.uses}
        length = 0
        while length < len(prompt) and tuple(prompt[: length + 1]) in held:
            length += 1
        return length

    @staticmethod
    def is_live(prefix, live):
        return any(tuple(prompt[: len(prefix)]) == prefix for prompt in live)
