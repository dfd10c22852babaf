"""Vocabulary of health: rank states, results of checks, and causes."""

from enum import IntEnum, StrEnum


class RankHealthState(IntEnum):
    """State of a rank; the numbers are the values of the metric."""

    HEALTHY = 0
    SUSPICIOUS = 1
    UNHEALTHY = 2
    DRAINING = 3
    DEAD = 4

    @property
    def label(self) -> str:
        """Lower-case name used in the API."""
        return self.name.lower()

    @property
    def is_serving(self) -> bool:
        """Whether new requests may go to the rank."""
        # The numeric order of the states is relied on here and for "worst rank" in reports.
        return self <= RankHealthState.SUSPICIOUS


class BreakerState(IntEnum):
    """State of a circuit breaker: decides about probes, while the rank's state decides the
    weight.
    """

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2

    @property
    def label(self) -> str:
        """Lower-case name used in the API."""
        return self.name.lower()


class CheckKind(StrEnum):
    """Result of a check, or cause of a rank's state."""

    PASS = "pass"
    NEUTRAL = "neutral"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    HTTP_5XX = "http_5xx"
    MALFORMED = "malformed"
    TOKEN_MISMATCH = "token_mismatch"
    LOGIT_DRIFT = "logit_drift"
    LATENCY_SPIKE = "latency_spike"
    PASSIVE = "passive"
    FATAL = "fatal"
    OPERATOR = "operator"


class AttemptResult(StrEnum):
    """Result of a request to an engine."""

    ANSWER = "answer"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    HTTP_5XX = "http_5xx"
    MALFORMED = "malformed"
    BUSY = "busy"
    MISCONFIGURED = "misconfigured"


class RequestOutcome(StrEnum):
    """Outcome of a request as reported by the client."""

    OK = "ok"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    FATAL = "fatal"


WRONG_ANSWERS = frozenset({CheckKind.TOKEN_MISMATCH, CheckKind.LOGIT_DRIFT})
"""Causes by wrong output: never replaced, exempt from the ejection limit, cleared by several
passes.
"""
EJECTION_LIMITED = frozenset(
    {
        CheckKind.TIMEOUT,
        CheckKind.HTTP_5XX,
        CheckKind.MALFORMED,
        CheckKind.LATENCY_SPIKE,
        CheckKind.PASSIVE,
    }
)
"""Causes subject to the ejection limit of a partition."""
PROCESS_LOST_CAUSES = frozenset({CheckKind.CONNECT, CheckKind.FATAL})
"""Causes after which a returning process has lost its requests."""
SILENT_KINDS = frozenset({CheckKind.TIMEOUT, CheckKind.CONNECT})
"""Results of a check in which possibly no attempt was answered."""
SLOW_KINDS = frozenset({CheckKind.TIMEOUT, CheckKind.LATENCY_SPIKE})
"""Results that the network or this host may have caused."""
SILENT_RESULTS = frozenset({AttemptResult.TIMEOUT, AttemptResult.CONNECT})
"""Results of an attempt that was not answered."""
CACHE_READABLE_CAUSES = frozenset({CheckKind.LATENCY_SPIKE, CheckKind.OPERATOR})
"""Causes after which the cache of a rank is readable and correct."""
KIND_OF_RESULT = {
    AttemptResult.ANSWER: CheckKind.PASS,
    AttemptResult.CONNECT: CheckKind.CONNECT,
    AttemptResult.TIMEOUT: CheckKind.TIMEOUT,
    AttemptResult.HTTP_5XX: CheckKind.HTTP_5XX,
    AttemptResult.MALFORMED: CheckKind.MALFORMED,
    AttemptResult.BUSY: CheckKind.NEUTRAL,
    AttemptResult.MISCONFIGURED: CheckKind.NEUTRAL,
}
"""Kind of an attempt before its answer is judged."""
