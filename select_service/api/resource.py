"""From a request that has found its path to an answer: methods, arguments, refusals, warnings."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from select_service.access.audit import Asked, begun_line, is_action, line_of
from select_service.access.guard import EVERYTHING, Grant
from select_service.api.limits import holder_of
from select_service.api.parameters import query_of
from select_service.api.service import (
    AuditLog,
    InternalError,
    Service,
    TracingPlane,
    grant_of,
    now,
)
from select_service.api.tenancy import keep_within
from select_service.errors import (
    AuditUnavailable,
    Forbidden,
    Overloaded,
    QuotaExceeded,
    SelectError,
    UnknownField,
)
from select_service.http.codec import HOLDER, body_as, error_response
from select_service.http.connection import ClientGone, Verified, connection_of
from select_service.http.endpoint import Endpoint, Route
from select_service.http.request_warnings import STRICT, Warned, tell, warn, warned
from select_service.http.second_reading import BodyForm
from select_service.spelling import SHOWN_CHARS_MAX, nearest

CLIENT_GONE = "client_gone"
"""Code of what was not answered, because nobody was there any more."""


class MethodNotAllowed(SelectError):
    status, code = 405, "method_not_allowed"


class RouteNotFound(SelectError):
    status, code = 404, "route_not_found"


class Resource:
    """ASGI endpoint of one path: an action per method, HEAD where there is GET."""

    def __init__(self, path: str, endpoints: Iterable[Endpoint]) -> None:
        self.path = path
        self._actions = {endpoint.route.method: _Action(endpoint) for endpoint in endpoints}
        if "GET" in self._actions:
            self._actions["HEAD"] = self._actions["GET"]
        self._allow = ",".join(self._actions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["service"]
        scope["resource"] = self.path
        request = Request(scope, receive)
        try:
            response = await self._answer(service, request)
        except ClientGone:
            return
        service.metrics.request(self.path, scope["method"], response.status_code)
        scope["answering"] = True
        await response(scope, receive, send)

    async def _answer(self, service: Service, request: Request) -> Response:
        action = self._actions.get(request.method)
        if action is None:
            return self._wrong_method(request.method)
        code, status = None, InternalError.status
        try:
            response = await self._act(service, request, action)
            in_body, status = response.status_code in action.extensible, response.status_code
        except ClientGone:
            code = CLIENT_GONE
            raise
        except SelectError as error:
            code, status = error.code, error.status  # not `error`: its traceback leads here
            response = error_response(_told(request, error))
            in_body = not isinstance(error, Overloaded)
            if "is_last" in request.scope:
                response.headers["connection"] = "close"
        finally:
            if "span" in request.scope:
                request.scope["span"].end(status, code)
            await _audit(service, request, action.route, status, code)
        if "warnings" in request.scope:
            for each in warned(request):
                service.metrics.warned(self.path, each.kind)
            tell(response, warned(request), in_body)
        return response

    async def _act(self, service: Service, request: Request, action: "_Action") -> Response:
        """Raises SelectError, ClientGone."""
        scope, guard, may_call = request.scope, service.guard, action.route.may_call
        scope["grant"] = grant = guard.who(self.path, may_call, scope["headers"])
        scope[HOLDER] = guard.holder(grant)
        if grant.key is None:
            return await self._let_in(service, request, action)
        guard.let_in(self.path, may_call, grant, now())
        try:
            _note(service, request, grant)
            return await self._let_in(service, request, action)
        except QuotaExceeded as error:
            guard.refused(self.path, grant.key, error)
            raise

    async def _let_in(self, service: Service, request: Request, action: "_Action") -> Response:
        """Raises SelectError, ClientGone."""
        scope, grant = request.scope, grant_of(request)
        if service.tracing is not None and action.is_traced:
            _begin_span(service.tracing, self.path, scope)
        scope["arguments"] = arguments = await action.arguments(request)
        if "span" in scope:
            scope["span"].asked(arguments[0])
        if grant.tenants is not None:
            _keep_within(service, request, action.route)
        if "warnings" in scope:
            _check_strictness(service, request, action.is_strict)
        if service.audit is not None and service.audit.is_required:
            await _begin_audit(service.audit, request, action.route)
        return await action.handler(service, request, *arguments)

    def _wrong_method(self, method: str) -> Response:
        text = f"method not allowed: `{self.path}` takes {self._allow.replace(',', ', ')}"
        response = error_response(MethodNotAllowed(text))
        response.headers["allow"] = self._allow
        return response


def _begin_span(tracing: TracingPlane, path: str, scope: Scope) -> None:
    span = tracing.begin(path, scope)
    if span is not None:
        scope["span"] = span


def _note(service: Service, request: Request, grant: Grant) -> None:
    """Let the connection know whose requests come in on it.  Raises QuotaExceeded."""
    connection = connection_of(request)
    if connection.is_real:
        try:
            connection.count(service.limits.connections, holder_of(request))
        except QuotaExceeded:
            request.scope["is_last"] = True
            raise
    value = next(value for name, value in request.scope["headers"] if name == b"authorization")
    connection.verified = Verified(value, grant)


def _keep_within(service: Service, request: Request, route: Route) -> None:
    """Raises Forbidden, which is counted, NotFound, Conflict."""
    grant: Grant = request.scope["grant"]
    try:
        keep_within(service, grant, route, request.scope["arguments"])
    except Forbidden as error:
        service.guard.refused(request.scope["resource"], grant.key, error)
        raise


async def _audit(
    service: Service, request: Request, route: Route, status: int, code: str | None
) -> None:
    """Keep what an operator did, before it is answered."""
    scope = request.scope
    if service.audit is None or "grant" not in scope or code == AuditUnavailable.code:
        return
    if not is_action(route.may_call, route.method, scope["grant"]):
        return
    line = line_of(_asked(request), route.operation_id, status, code)
    if line is not None:
        await service.audit.note(line, has_begun="audit_begun" in scope)


async def _begin_audit(audit: AuditLog, request: Request, route: Route) -> None:
    """Keep what an operator is about to do.  Raises AuditUnavailable."""
    if is_action(route.may_call, route.method, request.scope["grant"]):
        await audit.begin(begun_line(_asked(request), route.operation_id))
        request.scope["audit_begun"] = True


def _asked(request: Request) -> Asked:
    scope = request.scope
    body = next((each for each in scope.get("arguments", ()) if isinstance(each, Struct)), None)
    source = None if request.client is None else request.client.host
    return Asked(scope["grant"], source, request.method, scope["path"], body)


def _told(request: Request, error: SelectError) -> SelectError:
    """The refusal as this client may read it."""
    grant: Grant = request.scope.get("grant", EVERYTHING)
    if grant.tenants is None or error.bound_text is None:
        return error
    return type(error)(error.bound_text)


def _check_strictness(service: Service, request: Request, is_strict: bool) -> None:
    """Raises UnknownField, of routes that are strict or with --strict-fields."""
    texts = [each.text for each in warned(request) if each.kind in STRICT]
    if texts and (is_strict or service.config["strict_fields"]):
        for each in request.scope.pop("warnings"):
            service.metrics.warned(request.scope["resource"], each.kind)
        raise UnknownField("; ".join(texts))


TRACED = frozenset(("select", "select_and_reserve", "create_reservation"))
"""Operations that get a span."""
ENDING_WORDS = frozenset(("free", "release", "delete", "remove", "cancel", "finish", "end"))
"""What other interfaces call the end of a reservation; among our verbs the nearest is another."""


class _Action:
    """One endpoint, ready to be called."""

    def __init__(self, endpoint: Endpoint) -> None:
        route, self.handler = endpoint
        self.route = route
        self.extensible = {status for status, a in route.answers.items() if a.may_be_extended}
        self.is_strict, self.is_traced = route.is_strict, route.operation_id in TRACED
        self._in_path = route.in_path
        self._query = tuple(parameter.name for parameter in route.query)
        self._body = route.body
        self._form: BodyForm[Any] | None = route.body and BodyForm(route.body.type)

    async def arguments(self, request: Request) -> list[Any]:
        """What the handler takes besides the request.  Raises SelectError, ClientGone."""
        found: list[Any] = []
        if self._in_path is not None:
            found.append(self._in_path.read(request.path_params[self._in_path.name]))
        if self._query:
            found.append(query_of(request, self._query))
        elif request.scope["query_string"]:
            query_of(request, ())
        if self._body is not None and self._form is not None:
            body = await body_as(request, self._form, optional=self._body.optional)
            if self._body.unused is not None and (text := self._body.unused(body)):
                warn(request, [Warned("unused_field", text)])
            found.append(body)
        return found


class NoSuchRoute:
    """ASGI endpoint of everything else."""

    def __init__(self, paths: Sequence[str]) -> None:
        """paths: with the names of parameters in them"""
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["service"]
        service.metrics.request("unknown", "any", RouteNotFound.status)
        meant = ending_path(scope["path"], self._paths) or nearest_path(scope["path"], self._paths)
        proposal = "; see /docs" if meant is None else f": did you mean `{meant}`?"
        await error_response(RouteNotFound(f"route not found{proposal}"))(scope, receive, send)


def ending_path(path: str, paths: Sequence[str]) -> str | None:
    """What ends the thing that a path names, when its last segment is a word for that."""
    parent, _, verb = path[:SHOWN_CHARS_MAX].strip("/").lower().rpartition("/")
    thing = nearest_path(parent, paths) if verb in ENDING_WORDS else None
    return f"DELETE {thing}" if thing is not None and thing.endswith("}") else None


def nearest_path(path: str, paths: Sequence[str]) -> str | None:
    """The path that somebody meant who wrote another one; None: none is like it."""
    wanted = "/" + path[:SHOWN_CHARS_MAX].strip("/").lower()
    segments = wanted.split("/")
    return nearest(wanted, paths, lambda known: _filled(known, segments))


def _filled(known: str, segments: Sequence[str]) -> str:
    """`known` with the segments of a path in the places of its parameters."""
    own = known.split("/")
    given = dict(enumerate(segments))
    return "/".join(given.get(i, each) if each[:1] == "{" else each for i, each in enumerate(own))
