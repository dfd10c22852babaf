"""Inputs of a tick: traffic, replicas and forward passes, in seconds, tokens and requests.

`None` means *unknown* everywhere, which differs from zero: unknown values never scale down.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from select_service.planner.core.reconcile import Proposal
from select_service.planner.core.stages import PluginCall, SourcedPrediction

REPLICAS_MAX = 1_000_000
"""Limit of the replicas of a role in any request or answer."""
HIT_RATE_MAX = 0.95
"""Limit of the cached part of prompts: a part of every prompt is always computed."""


class Role(StrEnum):
    """Role of replicas. Engines that prefill and decode count as `DECODE` (mode `agg`)."""

    PREFILL = "prefill"
    DECODE = "decode"


def worker_role(word: str | None) -> Role:
    """Return the role of a worker: every worker except pure prefill counts as decode."""
    return Role.PREFILL if word == "prefill" else Role.DECODE


def usable_hit_rate(rate: float | None) -> float:
    """Return the cached part of prompts to calculate with; 0 if unknown."""
    return min(max(rate or 0.0, 0.0), HIT_RATE_MAX)


class EngineLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of an engine; `None` until reported."""

    num_gpu: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_kv_tokens: int | None = None
    context_length: int | None = None


class ForwardPass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Iteration of a rank, with the requests that queued meanwhile.

    A rank that idles has `wall_s` 0: such a pass moves averages and is no sample.
    """

    worker: str
    rank: int = 0
    wall_s: float = 0.0
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_kv_tokens: int = 0
    queued_prefill_requests: int = 0
    queued_prefill_tokens: int = 0
    queued_decode_requests: int = 0
    queued_decode_kv_tokens: int = 0
    booked: bool = False
    """Whether the values come from selector reservations: no iteration, so models do not learn from
    it.
    """

    @property
    def is_idle(self) -> bool:
        """Whether the rank has no request."""
        prefill = self.prefill_requests, self.prefill_tokens
        queued = self.queued_prefill_requests, self.queued_prefill_tokens
        waiting = self.queued_decode_requests, self.queued_decode_kv_tokens
        return not any((*prefill, *queued, self.decode_requests, *waiting))


class LengthBins(Struct, frozen=True, kw_only=True):
    """Histogram: `counts[i]` values with mean `means[i]`; empty bins are omitted."""

    means: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values, at least 1."""
        sums = (mean * count for mean, count in zip(self.means, self.counts, strict=True))
        return max(1.0, sum(sums) / self.total) if self.total else 1.0


LINK_USE_MAX = 0.8
"""Use of the links between hosts from which on they limit the deployment."""


class PairWindow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pairs of a window: prefill and decode chosen together.

    local_uncached, remote_uncached: uncached tokens of prompts that decode ranks compute, and of
        all other prompts; None without any
    moved_tokens:   prompt tokens that moved to a decode rank
    link_use:       part of the time that the links between hosts were in use, on average; None if
        a link's speed is unknown
    link_backlog_s: longest queue before a link at the end of the window, seconds
    """

    remote: float
    local: float
    local_uncached: LengthBins | None = None
    remote_uncached: LengthBins | None = None
    moved_tokens: float = 0.0
    link_use: float | None = None
    link_backlog_s: float | None = None

    @property
    def local_share(self) -> float:
        """Part of all requests, also without a pair, that leave the prompt to the decode rank."""
        local, remote = (
            0.0 if bins is None else bins.total
            for bins in (self.local_uncached, self.remote_uncached)
        )
        return local / (local + remote) if local else 0.0

    @property
    def is_link_bound(self) -> bool:
        """Whether the links between hosts limit the deployment."""
        return self.link_use is not None and self.link_use >= LINK_USE_MAX


class PrefillTiming(Struct, frozen=True, array_like=True):
    """Time of a prompt from admission to first token.

    `ahead_tokens` were queued on the rank before.
    """

    uncached_tokens: float
    seconds: float
    ahead_tokens: float


class DecodeTiming(Struct, frozen=True, array_like=True):
    """Time of an output block.

    seconds:       seconds a token
    live_requests: live requests on the rank meanwhile
    kv_tokens:     their KV tokens
    """

    live_requests: float
    kv_tokens: float
    seconds: float


class TrafficWindow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests of a window: means of rates and lengths, and distributions if known."""

    duration_s: float
    requests: float | None = None
    isl: float | None = None
    osl: float | None = None
    kv_hit_rate: float | None = None
    accept_length: float | None = None
    uncached_isl: LengthBins | None = None
    context: LengthBins | None = None
    arrival_variation: float | None = None
    """Squared coefficient of variation of the times between arrivals (1: Poisson)."""
    prefill_samples: tuple[PrefillTiming, ...] = ()
    decode_samples: tuple[DecodeTiming, ...] = ()
    rejected: float = 0.0
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    ttft_met: float | None = None
    """Part of the requests with a reported time to first token that kept `ttft_ms`."""
    itl_met: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    """Mean of the reported times between tokens, seconds (`ttft_s`: to first token)."""
    pairs: PairWindow | None = None
    """None if no pair was booked."""

    @property
    def has_refusals_or_queue(self) -> bool:
        """Whether requests were refused or queue; also valid for an incomplete window."""
        return self.rejected > 0.0 or self.queued_requests > 0.0

    @property
    def is_idle(self) -> bool:
        """Whether the window certainly had no request."""
        return self.requests == 0.0 and not self.has_refusals_or_queue

    def without_totals(self) -> "TrafficWindow":
        """Return the values that are certain although part of the requests was not seen."""
        return TrafficWindow(
            duration_s=self.duration_s,
            rejected=self.rejected,
            queued_requests=self.queued_requests,
            queued_tokens=self.queued_tokens,
        )


class RoleReplicas(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reading of a role by a connector. `expected` None means unknown."""

    ready: int
    expected: int | None = None
    pending: int = 0
    in_progress: bool = False
    startup_only: bool = False
    """Whether the connector has verified that replicas only start: none drains or rolls."""
    draining: int = 0
    """Replicas that finish their requests before the end."""
    draining_is_ready: bool = False
    """Whether `ready` counts the draining replicas."""
    limits: EngineLimits | None = None


class LostWorker(Struct, frozen=True, kw_only=True):
    """Worker that health has taken out at every selector. out_s: seconds since then"""

    worker_id: int
    out_s: float
    state: str
    cause: str = ""


class RoleHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Health of a role's workers, as all selectors see it.

    serving: workers that take requests
    spares:  idle spares that could
    """

    serving: int
    lost: tuple[LostWorker, ...] = ()
    spares: int = 0


def count_serving(found: RoleReplicas) -> int:
    """Return the replicas that take requests: ready ones that do not drain."""
    return max(0, found.ready - found.draining) if found.draining_is_ready else found.ready


def reported_gpus(replicas: Mapping[Role, RoleReplicas]) -> dict[Role, int]:
    """Return the GPUs of a replica, for the roles with a number reported by the platform."""
    return {
        role: found.limits.num_gpu
        for role, found in replicas.items()
        if found.limits is not None and found.limits.num_gpu is not None
    }


class TickInput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Complete input of a tick of a deployment. A failed source leaves None."""

    now_s: float
    replicas: Mapping[Role, RoleReplicas]
    traffic: TrafficWindow | None = None
    passes: Mapping[Role, tuple[ForwardPass, ...]] | None = None
    predictions: tuple[SourcedPrediction, ...] = ()
    """Answers of plugins to PREDICT, which replace parts of the builtin prediction."""
    proposals: tuple[Proposal, ...] = ()
    """Answers of plugins to PROPOSE, added to the builtin proposals."""
    health: Mapping[Role, RoleHealth] | None = None
    """Health of the workers; None if unknown or not checked."""
    degradation_level: int = 0
    """Highest degradation level of the selectors; 0 if unknown."""
    constraints: tuple[Proposal, ...] = ()
    """Answers of plugins to CONSTRAIN: bounds on the reconciled counts.

    A SET among them is dropped and reported.
    """
    plugin_calls: tuple[PluginCall, ...] = ()
    """Calls of plugins in this tick, in the order of the stages."""
