"""Handling of a request after routing: authentication, arguments, errors, warnings, audit."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from select_service.api.feature_interfaces import AuditLogInterface, TracingInterface
from select_service.api.process_limits import request_holder
from select_service.api.request_parameters import parse_query
from select_service.api.service_context import (
    InternalError,
    ServiceContext,
    core_time,
    request_grant,
    request_span,
)
from select_service.api.tenant_isolation import check_request
from select_service.auth.audit_lines import (
    AuditedRequest,
    is_operator_action,
    make_audit_line,
    make_begun_line,
)
from select_service.auth.guard import UNRESTRICTED_GRANT, Grant
from select_service.base.errors import (
    AuditUnavailable,
    Forbidden,
    Overloaded,
    QuotaExceeded,
    SelectError,
    UnknownField,
)
from select_service.base.suggestions import SHOWN_CHARS_MAX, nearest_name
from select_service.http.body_codec import HOLDER_SCOPE_KEY, error_response, read_body
from select_service.http.client_connection import ClientGone, VerifiedCredentials, connection_of
from select_service.http.endpoint import RouteHandler, RouteSpec
from select_service.http.lenient_decode import BodySchema
from select_service.http.request_warnings import (
    STRICT_KINDS,
    RequestWarning,
    add_warnings,
    attach_warnings,
    collected_warnings,
)

CLIENT_GONE = "client_gone"
"""Code for requests left unanswered because the client disconnected."""


class MethodNotAllowed(SelectError):
    """The path does not support the method."""

    status, code = 405, "method_not_allowed"


class RouteNotFound(SelectError):
    """The path matches no route."""

    status, code = 404, "route_not_found"


class Resource:
    """ASGI endpoint of a path: an operation per method, and HEAD wherever there is GET."""

    def __init__(self, path: str, endpoints: Iterable[RouteHandler]) -> None:
        self.path = path
        self._operations = {endpoint.route.method: _Operation(endpoint) for endpoint in endpoints}
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]
        self._allowed_methods = ",".join(self._operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: ServiceContext = scope["service"]
        scope["resource"] = self.path
        request = Request(scope, receive)
        try:
            response = await self._answer_request(service, request)
        except ClientGone:
            return
        service.metrics.count_request(self.path, scope["method"], response.status_code)
        # From here on a failure must not start a second response (see Application._failed).
        scope["answering"] = True
        await response(scope, receive, send)

    async def _answer_request(self, service: ServiceContext, request: Request) -> Response:
        """Run the operation and return its response; SelectErrors become error responses."""
        action = self._operations.get(request.method)
        if action is None:
            return self._method_not_allowed(request.method)
        code, status = None, InternalError.status
        try:
            response = await self._authenticate_and_run(service, request, action)
            in_body, status = (
                response.status_code in action.extensible_statuses,
                response.status_code,
            )
        except ClientGone:
            code = CLIENT_GONE
            raise
        except SelectError as error:
            code, status = (
                error.code,
                error.status,
            )  # bind fields only: the error's traceback refers to this frame (a cycle)
            response = error_response(_redacted(request, error))
            # The body is that of Dynamo's frontend and must not be extended: warnings go into a
            # header.
            in_body = not isinstance(error, Overloaded)
            # The key has too many connections: this one is closed after its response.
            if "is_last" in request.scope:
                response.headers["connection"] = "close"
        finally:
            if (span := request_span(request.scope)) is not None:
                span.end_span(status, code)
            await _log_action(service, request, action.route, status, code)
        if "warnings" in request.scope:
            for each in collected_warnings(request):
                service.metrics.count_warning(self.path, each.kind)
            attach_warnings(response, collected_warnings(request), in_body)
        return response

    async def _authenticate_and_run(
        self, service: ServiceContext, request: Request, action: "_Operation"
    ) -> Response:
        """Authenticate and authorize the client, then handle the request.

        Raises SelectError, ClientGone.
        """
        scope, guard, may_call = request.scope, service.guard, action.route.may_call
        scope["grant"] = grant = guard.authenticate(self.path, may_call, scope["headers"])
        scope[HOLDER_SCOPE_KEY] = guard.holder_of_grant(grant)
        if grant.key is None:
            return await self._run_operation(service, request, action)
        guard.authorize(self.path, may_call, grant, core_time())
        try:
            _note_credentials(service, request, grant)
            return await self._run_operation(service, request, action)
        except QuotaExceeded as error:
            guard.count_refusal(self.path, grant.key, error)
            raise

    async def _run_operation(
        self, service: ServiceContext, request: Request, action: "_Operation"
    ) -> Response:
        """Decode the arguments, check tenancy and warnings, call the handler.

        Raises SelectError, ClientGone.
        """
        scope, grant = request.scope, request_grant(request)
        audit, tracing = service.features.audit, service.features.tracing
        if tracing is not None and action.is_traced:
            _begin_span(tracing, self.path, scope)
        scope["arguments"] = arguments = await action.decode_arguments(request)
        if (span := request_span(scope)) is not None:
            span.record_request(arguments[0])
        if grant.tenants is not None:
            _check_tenants(service, request, action.route)
        if "warnings" in scope:
            _check_strictness(service, request, action.is_strict)
        if audit is not None and audit.is_required:
            await _begin_audit(audit, request, action.route)
        return await action.handler(service, request, *arguments)

    def _method_not_allowed(self, method: str) -> Response:
        text = (
            f"method not allowed: `{self.path}` supports {self._allowed_methods.replace(',', ', ')}"
        )
        response = error_response(MethodNotAllowed(text))
        response.headers["allow"] = self._allowed_methods
        return response


def _begin_span(tracing: TracingInterface, path: str, scope: Scope) -> None:
    span = tracing.start_span(path, scope)
    if span is not None:
        scope["span"] = span


def _note_credentials(service: ServiceContext, request: Request, grant: Grant) -> None:
    """Record on the connection which key its requests use.  Raises QuotaExceeded."""
    connection = connection_of(request)
    if connection.is_real:
        try:
            connection.count_for(service.limits.connections, request_holder(request))
        except QuotaExceeded:
            request.scope["is_last"] = True
            raise
    # The fast path accepts later requests of this connection with the same header value, without
    # hashing the key again.
    value = next(value for name, value in request.scope["headers"] if name == b"authorization")
    connection.verified = VerifiedCredentials(value, grant)


def _check_tenants(service: ServiceContext, request: Request, route: RouteSpec) -> None:
    """Check the tenants of the key.  Raises Forbidden, which is counted, NotFound, Conflict."""
    grant: Grant = request.scope["grant"]
    try:
        check_request(service, grant, route, request.scope["arguments"])
    except Forbidden as error:
        service.guard.count_refusal(request.scope["resource"], grant.key, error)
        raise


async def _log_action(
    service: ServiceContext, request: Request, route: RouteSpec, status: int, code: str | None
) -> None:
    """Record an operator's action in the audit log before the response is sent."""
    scope, audit = request.scope, service.features.audit
    if audit is None or "grant" not in scope or code == AuditUnavailable.code:
        return
    if not is_operator_action(route.may_call, route.method, scope["grant"]):
        return
    line = make_audit_line(_audited_request(request), route.operation_id, status, code)
    if line is not None:
        await audit.record_answered(line, has_begun="audit_begun" in scope)


async def _begin_audit(audit: AuditLogInterface, request: Request, route: RouteSpec) -> None:
    """Record an operator's action before it is carried out.  Raises AuditUnavailable."""
    if is_operator_action(route.may_call, route.method, request.scope["grant"]):
        await audit.record_begin(make_begun_line(_audited_request(request), route.operation_id))
        request.scope["audit_begun"] = True


def _audited_request(request: Request) -> AuditedRequest:
    scope = request.scope
    body = next((each for each in scope.get("arguments", ()) if isinstance(each, Struct)), None)
    source = None if request.client is None else request.client.host
    return AuditedRequest(scope["grant"], source, request.method, scope["path"], body)


def _redacted(request: Request, error: SelectError) -> SelectError:
    """Return the error without facts of other tenants, if the client's key is bound to tenants."""
    grant: Grant = request.scope.get("grant", UNRESTRICTED_GRANT)
    if grant.tenants is None or error.bound_text is None:
        return error
    return type(error)(error.bound_text)


def _check_strictness(service: ServiceContext, request: Request, is_strict: bool) -> None:
    """Turn warnings into an error for strict routes or with --strict-fields.

    Raises UnknownField.
    """
    texts = [each.text for each in collected_warnings(request) if each.kind in STRICT_KINDS]
    if texts and (is_strict or service.config["strict_fields"]):
        # The error text lists the warnings already: do not attach them again.
        for each in request.scope.pop("warnings"):
            service.metrics.count_warning(request.scope["resource"], each.kind)
        raise UnknownField("; ".join(texts))


TRACED_OPERATIONS = frozenset(("select", "select_and_reserve", "create_reservation"))
"""Operations traced by a span."""
FOREIGN_DELETE_WORDS = frozenset(("free", "release", "delete", "remove", "cancel", "finish", "end"))
"""Last path segments that other APIs use to end a reservation; our own verbs would mislead here."""


class _Operation:
    """Endpoint prepared for calls."""

    def __init__(self, endpoint: RouteHandler) -> None:
        route, self.handler = endpoint
        self.route = route
        self.extensible_statuses = {
            status for status, a in route.answers.items() if a.may_be_extended
        }
        self.is_strict, self.is_traced = route.is_strict, route.operation_id in TRACED_OPERATIONS
        self._in_path = route.in_path
        self._query = tuple(parameter.name for parameter in route.query)
        self._body = route.body
        self._schema: BodySchema[Any] | None = route.body and BodySchema(route.body.type)

    async def decode_arguments(self, request: Request) -> list[Any]:
        """Return the handler's arguments after the request.  Raises SelectError, ClientGone."""
        found: list[Any] = []
        if self._in_path is not None:
            found.append(self._in_path.read(request.path_params[self._in_path.name]))
        if self._query:
            found.append(parse_query(request, self._query))
        elif request.scope["query_string"]:
            parse_query(request, ())
        if self._body is not None and self._schema is not None:
            body = await read_body(request, self._schema, optional=self._body.optional)
            if self._body.unused_fields_warning is not None and (
                text := self._body.unused_fields_warning(body)
            ):
                add_warnings(request, [RequestWarning("unused_field", text)])
            found.append(body)
        return found


class NoSuchRoute:
    """ASGI endpoint of unmatched paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        """paths: known paths, with parameter names in braces"""
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: ServiceContext = scope["service"]
        service.metrics.count_request("unknown", "any", RouteNotFound.status)
        meant = suggest_delete(scope["path"], self._paths) or suggest_path(
            scope["path"], self._paths
        )
        proposal = "; see /docs" if meant is None else f": did you mean `{meant}`?"
        await error_response(RouteNotFound(f"route not found{proposal}"))(scope, receive, send)


def suggest_delete(path: str, paths: Sequence[str]) -> str | None:
    """Return the DELETE operation that a path like `/reservations/7/free` probably means, or
    None.
    """
    parent, _, verb = path[:SHOWN_CHARS_MAX].strip("/").lower().rpartition("/")
    thing = suggest_path(parent, paths) if verb in FOREIGN_DELETE_WORDS else None
    return f"DELETE {thing}" if thing is not None and thing.endswith("}") else None


def suggest_path(path: str, paths: Sequence[str]) -> str | None:
    """Return the known path most similar to a misspelt path; None means no similar path."""
    shown_path = "/" + path[:SHOWN_CHARS_MAX].strip("/").lower()
    segments = shown_path.split("/")
    return nearest_name(shown_path, paths, lambda template: _fill_parameters(template, segments))


def _fill_parameters(template: str, segments: Sequence[str]) -> str:
    """Return `template` with its parameters replaced by the segments of a path."""
    own = template.split("/")
    given = dict(enumerate(segments))
    return "/".join(given.get(i, each) if each[:1] == "{" else each for i, each in enumerate(own))
