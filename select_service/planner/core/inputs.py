"""What a tick is told: traffic, replicas and forward passes, in seconds, tokens and requests.

`None` is *unknown* everywhere, which is not zero: nothing is scaled down on what is not known.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from select_service.planner.core.merge import Proposal

REPLICAS_MAX = 1_000_000
"""Of one role, whoever asks for them."""
HIT_RATE_MAX = 0.95
"""Some of every prompt is computed, whatever is reported."""


class Role(StrEnum):
    """What replicas are scaled as. Engines that do both count as `DECODE` (mode `agg`)."""

    PREFILL = "prefill"
    DECODE = "decode"


def role_of(word: str | None) -> Role:
    """Of a worker: what is not for prefill alone counts as decode."""
    return Role.PREFILL if word == "prefill" else Role.DECODE


def hit_rate_used(rate: float | None) -> float:
    """Cached part of prompts that is reckoned with; unknown is 0."""
    return min(max(rate or 0.0, 0.0), HIT_RATE_MAX)


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine can hold; `None` while nobody has said it."""

    num_gpu: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_kv_tokens: int | None = None
    context_length: int | None = None


class ForwardPass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One iteration of one rank, and what waited beside it.

    `wall_s` of 0 is a rank that idled: it moves averages and is no sample.
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
    """What selectors have booked on the rank, and no iteration: nothing is learnt from it."""

    @property
    def is_idle(self) -> bool:
        """Whether the rank has no request."""
        prefill = self.prefill_requests, self.prefill_tokens
        queued = self.queued_prefill_requests, self.queued_prefill_tokens
        waiting = self.queued_decode_requests, self.queued_decode_kv_tokens
        return not any((*prefill, *queued, self.decode_requests, *waiting))


class Bins(Struct, frozen=True, kw_only=True):
    """A histogram: `counts[i]` values whose mean is `means[i]` (only bins with a count)."""

    means: tuple[float, ...]
    counts: tuple[float, ...]


class PrefillSample(Struct, frozen=True, array_like=True):
    """From admission to the first token: `ahead_tokens` waited on the rank already."""

    uncached_tokens: float
    seconds: float
    ahead_tokens: float


class DecodeSample(Struct, frozen=True, array_like=True):
    """One output block: seconds a token, among so many live requests with so many KV tokens."""

    live_requests: float
    kv_tokens: float
    seconds: float


class Traffic(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A window of requests. Rates and lengths as means, distributions where they are known."""

    duration_s: float
    requests: float | None = None
    isl: float | None = None
    osl: float | None = None
    kv_hit_rate: float | None = None
    accept_length: float | None = None
    uncached_isl: Bins | None = None
    context: Bins | None = None
    arrival_variation: float | None = None
    """Squared coefficient of variation of the times between arrivals (1: Poisson)."""
    prefill_samples: tuple[PrefillSample, ...] = ()
    decode_samples: tuple[DecodeSample, ...] = ()
    rejected: float = 0.0
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    ttft_met: float | None = None
    """Part of the requests with a reported time to first token that kept `ttft_ms`."""
    itl_met: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    """Means of those that were reported."""

    @property
    def is_turned_away(self) -> bool:
        """Whether requests were refused or wait; also known of a window that is not whole."""
        return self.rejected > 0.0 or self.queued_requests > 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it is known that there was no request."""
        return self.requests == 0.0 and not self.is_turned_away

    def without_totals(self) -> "Traffic":
        """Return what is certain where a part of the requests was not seen."""
        return Traffic(
            duration_s=self.duration_s,
            rejected=self.rejected,
            queued_requests=self.queued_requests,
            queued_tokens=self.queued_tokens,
        )


class Replicas(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a connector reads of one role. `expected` None: not known."""

    ready: int
    expected: int | None = None
    pending: int = 0
    in_progress: bool = False
    startup_only: bool = False
    """The connector has verified that nothing drains or rolls: replicas only start."""
    limits: Limits | None = None


def gpus_said(replicas: Mapping[Role, Replicas]) -> dict[Role, int]:
    """GPUs of one replica, of the roles of which the platform says it."""
    return {
        role: found.limits.num_gpu
        for role, found in replicas.items()
        if found.limits is not None and found.limits.num_gpu is not None
    }


class TickInput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one tick of one deployment may look at. A source that failed leaves None."""

    now_s: float
    replicas: Mapping[Role, Replicas]
    traffic: Traffic | None = None
    passes: Mapping[Role, tuple[ForwardPass, ...]] | None = None
    proposals: tuple[Proposal, ...] = ()
    """Of external proposers, besides the builtin ones."""
    constraints: tuple[Proposal, ...] = ()
    """Bounds on what was merged; a SET among them is dropped and reported."""
