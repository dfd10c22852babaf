"""The words of health: states, results and causes."""

from enum import IntEnum, StrEnum


class State(IntEnum):
    """Of a rank; the number is the one that metrics show."""

    HEALTHY = 0
    SUSPICIOUS = 1
    UNHEALTHY = 2
    DRAINING = 3
    DEAD = 4

    @property
    def word(self) -> str:
        """As users read it."""
        return self.name.lower()

    @property
    def serves(self) -> bool:
        """Do new requests go there?"""
        return self <= State.SUSPICIOUS


class BreakerState(IntEnum):
    """It decides when probes are sent; the state of the rank decides its weight."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2

    @property
    def word(self) -> str:
        """As users read it."""
        return self.name.lower()


class Kind(StrEnum):
    """What a check found, or why a rank is where it is."""

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


class Came(StrEnum):
    """What an engine did with one request."""

    ANSWER = "answer"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    HTTP_5XX = "http_5xx"
    MALFORMED = "malformed"
    BUSY = "busy"
    MISCONFIGURED = "misconfigured"


class Outcome(StrEnum):
    """What a caller says became of a request."""

    OK = "ok"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    FATAL = "fatal"


WRONG_ANSWERS = frozenset({Kind.TOKEN_MISMATCH, Kind.LOGIT_DRIFT})
"""Such a cause is kept, never limited, and heals only by several passes."""
LIMITED = frozenset({Kind.TIMEOUT, Kind.HTTP_5XX, Kind.MALFORMED, Kind.LATENCY_SPIKE, Kind.PASSIVE})
"""Causes for which only so many ranks of a partition are taken out."""
PROCESS_LOST = frozenset({Kind.CONNECT, Kind.FATAL})
"""Causes after which a process that is back has lost its requests."""
SLOW = frozenset({Kind.TIMEOUT, Kind.LATENCY_SPIKE})
"""Results that the network or this host may be to blame for."""
READABLE = frozenset({Kind.LATENCY_SPIKE, Kind.OPERATOR})
"""Causes after which the cache of a rank can be read, and is right."""
KIND_OF = {
    Came.ANSWER: Kind.PASS,
    Came.CONNECT: Kind.CONNECT,
    Came.TIMEOUT: Kind.TIMEOUT,
    Came.HTTP_5XX: Kind.HTTP_5XX,
    Came.MALFORMED: Kind.MALFORMED,
    Came.BUSY: Kind.NEUTRAL,
    Came.MISCONFIGURED: Kind.NEUTRAL,
}
"""Before an answer is judged."""
