"""Whether the index is where the engine is: certain, in doubt or degraded."""

from indexer.events.doubt import Anchor, Degraded, Doubt, Missing, Why


class Standing:
    """Of one stream.  What is in doubt may be degraded as well."""

    def __init__(self, can_replay: bool) -> None:
        self._can_replay = can_replay
        self.doubt: Doubt | None = None
        self.degraded: Degraded | None = None

    @property
    def was_cut_off(self) -> bool:
        """Could the engine have restarted unseen?"""
        return self.doubt is not None and self.doubt.why is not Why.SILENT

    def anchor(self, last: Anchor | None) -> Anchor | None:
        """What an answer has to begin with.  last: the last applied batch"""
        if self.doubt is not None and self.doubt.anchor is not None:
            return self.doubt.anchor
        return last

    # --- in doubt

    def resumed(self, last: Anchor | None, now: float) -> None:
        self.doubt = Doubt(Why.RESUMED, now, last)

    def interrupted(self, last: Anchor | None, now: float) -> None:
        """An older reason stays."""
        if not self.was_cut_off:
            self.doubt = Doubt(Why.INTERRUPTED, now, last)

    def unanswered(self, now: float) -> None:
        """Any other reason stays."""
        if self.doubt is None:
            self.doubt = Doubt(Why.SILENT, now, None)

    def inflated(self, now: float) -> None:
        """Its blocks were forgotten, and are learned anew where that is possible."""
        if self._can_replay:
            self.doubt = Doubt(Why.INFLATED, now, None)
        else:
            self.degraded = Degraded(Missing.INFLATED, now)

    def anchored(self) -> None:
        """The answer began as it had to; whatever follows is of the same life."""
        if self.doubt is not None:
            self.doubt = self.doubt._replace(anchor=None)

    def new_life_replayed(self, now: float) -> None:
        """An answer shows another life than the index had; what it has now is still to come."""
        if self.doubt is None:
            self.doubt = Doubt(Why.INTERRUPTED, now, None)
        self.anchored()

    # --- degraded

    def lost(self, what: str, now: float) -> None:
        since = now if self.degraded is None else self.degraded.since
        self.degraded = Degraded(f"lost {what}", since)

    # --- certain

    def applied_next(self) -> None:
        """The next batch was applied as it came."""
        if self.doubt is not None and (not self._can_replay or self.doubt.why is Why.SILENT):
            self.doubt = None

    def answered(self) -> None:
        """The replay endpoint has said all that followed."""
        self.doubt = None

    def forgotten(self) -> None:
        """Nothing of the old life counts; whether the new one is known is another matter."""
        self.degraded = None

    def empty(self) -> None:
        """The rank is known to hold nothing."""
        self.degraded = self.doubt = None
