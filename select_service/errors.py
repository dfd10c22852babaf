"""Refusals: every way in which the service says no, with its HTTP status and a stable code.

A refusal is raised before the first write, so a refused request changes nothing.  The text says
what was wrong and what was expected; `code` is for programs and never changes.
"""

from typing import Any, ClassVar


class PortableError(Exception):
    """Base of errors whose constructor takes more than a text: pickle and copy keep all of them.

    Exceptions are pickled as a call of their class with `args`, which is the text alone.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(
    kind: type[PortableError], args: tuple[Any, ...], fields: dict[str, Any]
) -> PortableError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class SelectError(PortableError):
    """Base of all refusals.  `status` and `code` are fixed per class, the text is per case."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retry_after_s: int | None = None
    details: dict[str, Any] | None = None
    bound_text: str | None = None
    """What somebody is told who must not hear of other tenants, where the text speaks of them."""


class MalformedJson(SelectError):
    status, code = 400, "malformed_json"


class BadRequest(SelectError):
    status, code = 400, "bad_request"


class DestinationRefused(SelectError):
    """This process would have to connect to an address to which it may not."""

    status, code = 400, "destination_refused"


class Unauthenticated(SelectError):
    """There is no key with the request, or none that is known."""

    status, code = 401, "unauthenticated"


class Forbidden(SelectError):
    """The key is known, but may not do this."""

    status, code = 403, "forbidden"


class QuotaExceeded(SelectError):
    """The key has used all that it may."""

    status, code = 429, "quota_exceeded"


class NotFound(SelectError):
    status, code = 404, "not_found"


class Conflict(SelectError):
    status, code = 409, "conflict"


class HealthOff(SelectError):
    """Engines are not checked: the service was started without `--health-checks on`."""

    status, code = 409, "health_off"

    def __init__(self) -> None:
        super().__init__("health is off: start the service with --health-checks on")


class BodyTooLarge(SelectError):
    status, code = 413, "body_too_large"


class UnsupportedMediaType(SelectError):
    status, code = 415, "unsupported_media_type"


class InvalidBody(SelectError):
    """Well-formed JSON of the wrong shape: a missing field, a wrong type, a number out of range."""

    status, code = 422, "invalid_body"


class UnknownField(SelectError):
    """A field or query parameter that does not exist; refused with --strict-fields only."""

    status, code = 422, "unknown_field"


class NoWorkers(SelectError):
    """No schedulable worker at all, or none in the partition."""

    status, code = 503, "no_schedulable_workers"


class NoEligibleRank(SelectError):
    """Workers exist, but none of them satisfies the request's own constraints."""

    status, code = 503, "no_eligible_rank"


class AuditUnavailable(SelectError):
    """With `--audit-required`: the line of this action cannot be written, so nothing was done."""

    status, code = 503, "audit_unavailable"


class CapacityExceeded(SelectError):
    """A named bound of this process is reached; nothing was added."""

    status, code = 503, "capacity_exceeded"


class ShuttingDown(SelectError):
    """The process ends before the request had come in as a whole."""

    status, code = 503, "shutting_down"


class Overloaded(SelectError):
    """Every candidate is above a busy threshold.  Its body is `OverloadedBody`."""

    status, code = 503, "service_unavailable"


class CapacityShed(SelectError):
    """The priority tier of the request is shed."""

    status, code = 503, "capacity_shed"


class Degraded(SelectError):
    """So few ranks of the model are left that nothing new is accepted for it."""

    status, code = 503, "degraded"


class QueueFull(SelectError):
    """The request would have to wait, and a bound of the queue is reached."""

    status, code = 503, "queue_full"


class QueueTimeout(SelectError):
    """No rank had room for the request in the time that it may wait."""

    status, code = 503, "queue_timeout"
