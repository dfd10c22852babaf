"""Naive twin of `TrafficObserver`: a list of all that happened, and the times of the looks."""

from bisect import bisect_right
from dataclasses import dataclass, field

from select_service.core.load.histogram_bins import TIME_EDGES_S, TOKEN_EDGES

SLOT_S_MIN = 0.9
REASONS = (
    "busy",
    "shed",
    "queue_full",
    "queue_timeout",
    "deadline_exceeded",
    "client_gone",
    "no_rank",
    "no_workers",
)


@dataclass
class LiveRequest:
    """Request with a booking."""

    worker_id: int
    isl: int
    booked_at: float
    left_before: int
    is_prefilling: bool = True
    spoke_at: float | None = None
    blocks: int = 0


@dataclass
class ObservationModel:
    """Log of the traffic.

    Entries are ("look", now) or an occurrence: the name of a list and the values.
    """

    block_size: int
    prefills: frozenset = frozenset()
    decodes: frozenset = frozenset()
    """Workers of these roles."""
    iterate_entries: list[tuple] = field(default_factory=list)
    live: dict[str, LiveRequest] = field(default_factory=dict)

    def note(self, *entry):
        self.iterate_entries.append(entry)

    def look(self, now):
        looks = [entry[1] for entry in self.iterate_entries if entry[0] == "look"]
        if not looks:
            self.iterate_entries.clear()
        if not looks or now - looks[-1] >= SLOT_S_MIN:
            self.note("look", now)

    # --- occurrences

    def _counts(self, worker_id):
        """Return whether a worker counts; decode ranks do not where prefill ranks exist."""
        return not (self.prefills and worker_id in self.decodes)

    def decided(self, worker_id, isl):
        if self._counts(worker_id):
            self.note("decided", isl)

    def booked(self, name, worker_id, isl, now):
        there = [r for r in self.live.values() if r.worker_id == worker_id and r.is_prefilling]
        if self._counts(worker_id):
            self.note("booked", isl)
        self.live[name] = LiveRequest(worker_id, isl, now, sum(r.isl for r in there))

    def completed(self, name, now):
        request = self.live[name]
        if request.is_prefilling:
            seconds = now - request.booked_at
            if request.spoke_at is None and request.worker_id not in self.decodes:
                self.note("ttft", seconds)
                self.note("prefill", request.isl, seconds, request.left_before)
            request.is_prefilling, request.spoke_at = False, now

    def output(self, name, now):
        request = self.live[name]
        if request.spoke_at is not None:
            a_token = (now - request.spoke_at) / self.block_size
            self.note("itl", a_token)
            if a_token > 0.0:
                self.note("decode", *self._load_of(request.worker_id), a_token)
        request.spoke_at = now
        request.blocks += 1

    def _load_of(self, worker_id):
        there = [r for r in self.live.values() if r.worker_id == worker_id]
        blocks = sum(r.isl // self.block_size + r.blocks for r in there)
        return len(there), blocks * self.block_size

    def record_freed(self, name):
        request = self.live.pop(name)
        if request.blocks:
            self.note("osl", request.blocks * self.block_size)

    def refused(self, reason):
        self.note("refused", reason)

    # --- the expected observation

    def read_window(self, window_s, now):
        """Return the begin of the window and the entries since then."""
        if not any(entry[0] == "look" for entry in self.iterate_entries):
            self.look(now)
        looks = [
            (at, entry[1]) for at, entry in enumerate(self.iterate_entries) if entry[0] == "look"
        ]
        at, begin = next((look for look in looks if look[1] >= now - window_s - 0.5), looks[-1])
        return begin, self.iterate_entries[at:]

    def expected(self, window_s, now):
        begin, since = self.read_window(window_s, now)
        of = {name: [e[1:] for e in since if e[0] == name] for name in {e[0] for e in since}}

        def values(name):
            return [entry[0] for entry in of.get(name, [])]

        decided, booked, refusals = values("decided"), values("booked"), values("refused")
        isl = decided if len(decided) >= len(booked) else booked
        return {
            "window_s": now - begin,
            "complete": abs(now - begin - window_s) <= 1.0,
            "arrivals": max(len(decided), len(booked)) + len(refusals),
            "rejected": {reason: refusals.count(reason) for reason in REASONS},
            "isl": histogram(TOKEN_EDGES, isl),
            "uncached_isl": histogram(TOKEN_EDGES, isl),
            "osl": histogram(TOKEN_EDGES, values("osl")),
            "ttft_s": histogram(TIME_EDGES_S, values("ttft")),
            "itl_s": histogram(TIME_EDGES_S, values("itl")),
            "prefill_s": of.get("prefill", []),
            "decode_s": of.get("decode", []),
        }


def histogram(edges, values):
    """Return counts and sum."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(max(bisect_right(edges, value) - 1, 0), len(counts) - 1)] += 1
    return counts, sum(values)
