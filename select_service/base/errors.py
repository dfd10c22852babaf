"""Errors of the service, each with an HTTP status and a stable code.

An error is raised before the first write, so a rejected request changes nothing.  The text has the
fact and the expected value; `code` is for programs and never changes.
"""

from typing import Any, ClassVar


class PicklableError(Exception):
    """Base of errors with a constructor that takes more than a text: pickle and copy keep all
    arguments.

    Exceptions are pickled as a call of their class with `args`, which contains only the text.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_error, (type(self), self.args, self.__dict__)


def _restore_error(
    kind: type[PicklableError], args: tuple[Any, ...], fields: dict[str, Any]
) -> PicklableError:
    # Without `__init__`: its parameters would be missing from `args`.
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class SelectError(PicklableError):
    """Base of all API errors.  `status` and `code` are fixed per class; the text varies."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retry_after_s: int | None = None
    details: dict[str, Any] | None = None
    bound_text: str | None = None
    """Text for callers bound to a tenant, if the normal text mentions other tenants."""


class MalformedJson(SelectError):
    status, code = 400, "malformed_json"


class BadRequest(SelectError):
    status, code = 400, "bad_request"


class DestinationRefused(SelectError):
    """Error for an address that the egress policy forbids."""

    status, code = 400, "destination_refused"


class Unauthenticated(SelectError):
    """Error for a missing or unknown API key."""

    status, code = 401, "unauthenticated"


class Forbidden(SelectError):
    """Error for a valid key without the permission."""

    status, code = 403, "forbidden"


class QuotaExceeded(SelectError):
    """Error for a key with an exhausted quota."""

    status, code = 429, "quota_exceeded"


class NotFound(SelectError):
    status, code = 404, "not_found"


class Conflict(SelectError):
    status, code = 409, "conflict"


class HealthChecksOff(SelectError):
    """Error for a health operation in a service started without `--health-checks on`."""

    status, code = 409, "health_off"

    def __init__(self) -> None:
        super().__init__("health is off: start the service with --health-checks on")


class BodyTooLarge(SelectError):
    status, code = 413, "body_too_large"


class UnsupportedMediaType(SelectError):
    status, code = 415, "unsupported_media_type"


class InvalidBody(SelectError):
    """Error for well-formed JSON of the wrong shape: missing field, wrong type, number out of
    range.
    """

    status, code = 422, "invalid_body"


class UnknownField(SelectError):
    """Error for an unknown field or query parameter, with --strict-fields only."""

    status, code = 422, "unknown_field"


class NoWorkers(SelectError):
    """Error for a service or partition without a schedulable worker."""

    status, code = 503, "no_schedulable_workers"


class NoEligibleRank(SelectError):
    """Error for a request with own constraints that exclude all ranks."""

    status, code = 503, "no_eligible_rank"


class AuditUnavailable(SelectError):
    """Error for an action refused with `--audit-required` because its line cannot be written."""

    status, code = 503, "audit_unavailable"


class CapacityExceeded(SelectError):
    """Error for a reached limit of this process; nothing was added."""

    status, code = 503, "capacity_exceeded"


class ShuttingDown(SelectError):
    """Error for a request that was incomplete when the process shut down."""

    status, code = 503, "shutting_down"


class Overloaded(SelectError):
    """Error when every candidate is above a busy threshold.  The body is `OverloadedBody`."""

    status, code = 503, "service_unavailable"


class CapacityShed(SelectError):
    """Error for a request of a priority tier that is shed."""

    status, code = 503, "capacity_shed"


class ModelDegraded(SelectError):
    """Error for a model with too few healthy ranks to accept new requests."""

    status, code = 503, "degraded"


class QueueFull(SelectError):
    """Error for a request that would have to queue while a queue limit is reached."""

    status, code = 503, "queue_full"


class PolicyClassFull(QueueFull):
    """Error for a request that would have to queue while its policy class is full: the client sends
    too much, whatever the other classes do.
    """

    status = 429


class DeadlineExceeded(SelectError):
    """Error for a request that cannot have a rank, or got none, before its deadline."""

    status, code = 503, "deadline_exceeded"


class QueueTimeout(SelectError):
    """Error for a request that found no rank within its queueing time."""

    status, code = 503, "queue_timeout"
