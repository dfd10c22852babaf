"""Naive twin of the checks of predictions: a record with everything about a booking, all kept."""

from dataclasses import dataclass, field

from select_service.core.analysis.accuracy import prediction_accuracy, prediction_checks


@dataclass
class BookedPrompt:
    """Booking with predictions to check.

    blocks: blocks of the prompt
    tokens: tokens before the end of the prefill
    """

    worker_id: int
    family: int
    blocks: int
    cached: int
    tokens: int
    booked_at: float
    renewed_at: float
    prefilling: bool = True
    live: bool = True
    rank_left: bool = False
    ended_at: float | None = None
    due_at: float = 0.0


@dataclass
class RankModel:
    shares: list = field(default_factory=list)
    waits: list = field(default_factory=list)
    """Pairs of tokens and seconds."""

    def trust(self):
        mean = 1.0
        for n, share in enumerate(self.shares, 1):
            mean += (share - mean) / min(n, prediction_accuracy.MEMORY_CHECKS)
        return mean

    def rate(self, n):
        """Return the rate after n waits."""
        kept = 1 - 1 / prediction_accuracy.MEMORY_CHECKS
        weights = [kept ** (n - 1 - k) for k in range(n)]
        seconds = sum(w * s for w, (_, s) in zip(weights, self.waits, strict=False))
        return sum(w * t for w, (t, _) in zip(weights, self.waits, strict=False)) / seconds

    def ratios(self):
        """Return observed time / predicted time, from the second wait on."""
        return [
            seconds / (tokens / self.rate(n)) for n, (tokens, seconds) in enumerate(self.waits) if n
        ]

    def wait_error(self):
        mean = 0.0
        for n, ratio in enumerate(self.ratios(), 1):
            error = 1 - min(ratio, 1 / ratio)
            mean += (error - mean) / min(n, prediction_accuracy.MEMORY_CHECKS)
        return mean


class TrustModel:
    def __init__(self):
        self.make_protocol, self.pending, self.ranks = [], [], {}

    def rank(self, worker_id):
        return self.ranks.setdefault(worker_id, RankModel())

    def step(self, now, blocks_there):
        """Run one step of the checks.

        blocks_there: function from a booking to the number of announced leading blocks
        """
        looks, rest = prediction_checks.MATCHES_MAX, []
        for booked in self.pending:
            if booked.rank_left:
                continue
            if booked.ended_at is None and booked.live and booked.prefilling:
                if now - booked.booked_at <= prediction_checks.PREFILL_S_MAX:
                    rest.append(booked)
                continue
            if booked.ended_at is None:
                self.end(booked, now)
            if booked.cached >= booked.blocks:
                continue
            if now < booked.due_at or not looks:
                rest.append(booked)
                continue
            looks -= 1
            new = blocks_there(booked) - booked.cached
            share = min(1, max(0, new / (booked.blocks - booked.cached)))
            if share < 1 and now < booked.ended_at + prediction_checks.GRACE_S:
                booked.due_at = booked.ended_at + prediction_checks.GRACE_S
                rest.append(booked)
            else:
                self.rank(booked.worker_id).shares.append(share)
        self.pending = rest
        self.take()

    def end(self, booked, now):
        booked.ended_at = booked.due_at = booked.renewed_at if booked.live else now
        if booked.live and booked.ended_at > booked.booked_at:
            wait = (booked.tokens, booked.ended_at - booked.booked_at)
            self.rank(booked.worker_id).waits.append(wait)

    def take(self):
        newest = self.make_protocol[::-1][: prediction_checks.ROWS_MAX]
        fit = [b for b in newest if b.live and b.prefilling and b.blocks]
        if len(self.pending) < prediction_checks.PENDING_MAX:
            self.pending += fit[:1]
        self.make_protocol = []
