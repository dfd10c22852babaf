"""Consistency of the index with the engine: certain, in doubt or degraded."""

from indexer.events.uncertainty import DoubtReason, KnownLoss, LossReason, ReplayAnchor, Uncertainty


class StreamConsistency:
    """State of a stream, which can be in doubt and degraded at once."""

    def __init__(self, can_replay: bool) -> None:
        self._can_replay = can_replay
        self.doubt: Uncertainty | None = None
        self.degraded: KnownLoss | None = None

    @property
    def reason(self) -> str | None:
        """Reason why events may be missing; None if none are."""
        if self.degraded is not None:
            return self.degraded.reason
        return None if self.doubt is None else self.doubt.reason.value

    @property
    def may_have_restarted(self) -> bool:
        """True if the engine could have restarted unseen."""
        return self.doubt is not None and self.doubt.reason is not DoubtReason.SILENT

    def replay_anchor(self, last: ReplayAnchor | None) -> ReplayAnchor | None:
        """Return the batch that an answer must begin with.  last: the last applied batch"""
        if self.doubt is not None and self.doubt.anchor is not None:
            return self.doubt.anchor
        return last

    # Changes to in doubt.

    def on_resumed(self, last: ReplayAnchor | None, now: float) -> None:
        self.doubt = Uncertainty(DoubtReason.RESUMED, now, last)

    def on_interrupted(self, last: ReplayAnchor | None, now: float) -> None:
        """Record an interruption; an older reason stays."""
        if not self.may_have_restarted:
            self.doubt = Uncertainty(DoubtReason.INTERRUPTED, now, last)

    def on_unanswered(self, now: float) -> None:
        """Record a missing answer; any other reason stays."""
        if self.doubt is None:
            self.doubt = Uncertainty(DoubtReason.SILENT, now, None)

    def on_inflated(self, now: float) -> None:
        """Record that the blocks were forgotten, and are rebuilt if a replay is possible."""
        if self._can_replay:
            self.doubt = Uncertainty(DoubtReason.INFLATED, now, None)
        else:
            self.degraded = KnownLoss(LossReason.INFLATED, now)

    def on_anchor_confirmed(self) -> None:
        """Record that the answer began as expected; the rest is of the same life."""
        if self.doubt is not None:
            self.doubt = self.doubt._replace(anchor=None)

    def on_new_life(self, now: float) -> None:
        """Record that an answer shows another life than the index; the blocks are still to come."""
        if self.doubt is None:
            self.doubt = Uncertainty(DoubtReason.INTERRUPTED, now, None)
        self.on_anchor_confirmed()

    # Changes to degraded.

    def on_lost(self, what: str, now: float) -> None:
        since = now if self.degraded is None else self.degraded.since
        self.degraded = KnownLoss(f"lost {what}", since)

    # Changes to certain.

    def on_next_applied(self) -> None:
        """Record that the next batch was applied on arrival."""
        # Without replays nothing else can end the doubt; a silent endpoint is not needed any more.
        if self.doubt is not None and (
            not self._can_replay or self.doubt.reason is DoubtReason.SILENT
        ):
            self.doubt = None

    def on_answered(self) -> None:
        """Record that the replay endpoint has sent everything that followed."""
        self.doubt = None

    def on_forgotten(self) -> None:
        """Discard the losses of the old life; doubt about the new life stays."""
        self.degraded = None

    def on_emptied(self) -> None:
        """Record that the rank is known to hold nothing."""
        self.degraded = self.doubt = None
