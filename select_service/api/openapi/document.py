"""OpenAPI 3.1 document, generated from the declared endpoints and the structs of the bodies.

msgspec generates the schemas of structs.  This module adds field descriptions, upper bounds of
64-bit integers, patterns for numeric object keys, and the fields always present in responses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from select_service.api.openapi.field_texts import field_texts
from select_service.auth.audit_lines import may_be_operator_action
from select_service.base.errors import (
    AuditUnavailable,
    Forbidden,
    Overloaded,
    QuotaExceeded,
    SelectError,
    Unauthenticated,
)
from select_service.http.endpoint import (
    JSON,
    BodySpec,
    EndpointGroup,
    HeaderParameter,
    PathParameter,
    QueryParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.admission import OverloadedBody
from select_service.schemas.common import U64, U64_MAX, ErrorBody, Hash

Json = dict[str, Any]

OPENAPI_VERSION: Final = "3.1.0"
I64_MIN = -(2**63)
U32_KEY = (
    "^(0|[1-9][0-9]{0,8}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}"
    "|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}"
    "|42949672[0-8][0-9]|429496729[0-5])$"
)
"""Pattern of an object key that is a decimal number from 0 to 2**32 - 1."""

ROUTE_NOT_FOUND = "route_not_found"
KEY = "key"
_SCHEMES: Json = {
    KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "Required if the service runs with `--api-keys-file`. Each operation lists "
        "roles; the key needs one of them.",
    }
}

_REFERENCE = "#/components/schemas/{name}"
_ERROR = {"$ref": _REFERENCE.format(name="ErrorBody")}
_NULL: Json = {"type": "null"}
_WARNINGS: Json = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Unknown fields and query parameters of the request, each with the most similar "
    "known name, and fields ignored because of others; absent without warnings.",
}
_DESCRIPTION = """\
Chooses the rank of an inference fleet that should run a prompt, and accounts for the load.

* Every error has the body `{"error": text, "code": code}`; the code is stable, the text is not.
  One error has the body of Dynamo's frontend instead: all workers are busy.
* Unknown fields of a body, unknown query parameters, and fields overridden by others are ignored
  with a warning. Responses that are objects get a field `warnings`; all others, and
  `{"status": "ok"}`, get a header `x-select-warnings` (a JSON array). With `--strict-fields`
  unknown names are an error, 422 `unknown_field`. They are always an error where a misspelt scope
  would be a wider scope: `PUT` and `DELETE /policy`, `POST /experiments`.
* null means the same as omitting a field, unless the field's description differs.
* `routing_group` is an alias of `tenant_id`; both default to `default`.
* Integers may use all 64 bits. Clients with doubles as JSON numbers must pass `worker_id` and
  hashes on unchanged.
* With `--api-keys-file` every call needs a key: `authorization: Bearer KEY`. A missing or unknown
  key is 401 `unauthenticated`; a key without the role or for other tenants is 403 `forbidden`.
* GET routes also accept HEAD. A wrong method is 405 `method_not_allowed` with an `allow` header, an
  unknown path 404 `route_not_found`. Connections may be refused before routing: 400
  `malformed_http`, 408 `timeout`, 431 `head_too_large`, 503 `capacity_exceeded`.
"""


def build_document(nouns: Sequence[EndpointGroup], version: str) -> Json:
    """Return the whole document.  version: version of the service"""
    routes = [endpoint.route for noun in nouns for endpoint in noun.endpoints]
    types = _types_of_routes(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    # Equal types may be distinct objects, such as Annotated ones: identify them by their repr.
    described = dict(zip(map(repr, types), schemas, strict=True))
    _complete_schemas(components, routes)
    for schema in (*components.values(), *described.values()):
        _bound_integers(schema)
    _add_descriptions(components, routes)
    _add_warnings(components, routes)
    paths: dict[str, Json] = {}
    for noun in nouns:
        for route, _ in noun.endpoints:
            operation = _operation_of(noun, route, described)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "select_service", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": noun.name, "description": noun.summary} for noun in nouns],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _types_of_routes(routes: Iterable[RouteSpec]) -> list[Any]:
    """Return every type used by a route in a request or a response."""
    types: list[Any] = [ErrorBody, OverloadedBody]
    for route in routes:
        types += [] if route.in_path is None else [route.in_path.type]
        types += [parameter.type for parameter in route.query]
        types += [kind for kind in _body_types(route) if kind is not None]
    return list({repr(kind): kind for kind in types}.values())


def _body_types(route: RouteSpec) -> list[Any]:
    body = None if route.body is None else route.body.type
    return [body, *(answer.type for answer in route.answers.values())]


# Operations: one per route, from its declaration.


def _operation_of(noun: EndpointGroup, route: RouteSpec, described: Mapping[str, Json]) -> Json:
    operation: Json = {
        "operationId": route.operation_id,
        "tags": [noun.name],
        "summary": route.summary,
    }
    if route.detail:
        operation["description"] = route.detail
    parameters = []
    if route.in_path is not None:
        parameters.append(_path_parameter(route.in_path, described))
    parameters += [_query_parameter(parameter, described) for parameter in route.query]
    parameters += [_header_parameter(parameter) for parameter in route.headers]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = _request_body(route.body, described)
    if route.may_call.roles:
        operation["security"] = [{KEY: sorted(route.may_call.roles)}, {}]
    operation["responses"] = _responses_of(route, described)
    return operation


def _request_body(body: BodySpec, described: Mapping[str, Json]) -> Json:
    examples = {name: {"value": value} for name, value in body.examples.items()}
    content = {"schema": described[repr(body.type)], "examples": examples}
    return {"required": not body.optional, "content": {JSON: content}}


def _path_parameter(parameter: PathParameter, described: Mapping[str, Json]) -> Json:
    return {
        "name": parameter.name,
        "in": "path",
        "required": True,
        "description": parameter.summary,
        "schema": described[repr(parameter.type)],
        "example": parameter.example,
    }


def _query_parameter(parameter: QueryParameter, described: Mapping[str, Json]) -> Json:
    schema = dict(described[repr(parameter.type)])
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.summary,
        "schema": schema,
    }


def _header_parameter(parameter: HeaderParameter) -> Json:
    return {
        "name": parameter.name,
        "in": "header",
        "description": parameter.summary,
        "schema": {"type": "string"},
    }


def _responses_of(route: RouteSpec, described: Mapping[str, Json]) -> Json:
    responses = {
        str(status): _response_of(answer, described) for status, answer in route.answers.items()
    }
    by_status: dict[int, list[type[SelectError]]] = {}
    of_keys = (Unauthenticated, Forbidden, QuotaExceeded) if route.may_call.roles else ()
    may_act = may_be_operator_action(route.may_call, route.method)
    for refusal in (*route.refusals, *of_keys, *((AuditUnavailable,) if may_act else ())):
        by_status.setdefault(refusal.status, []).append(refusal)
    for status, refusals in by_status.items():
        responses[str(status)] = _error_response(route, status, refusals)
    return dict(sorted(responses.items()))


def _response_of(answer: ResponseSpec, described: Mapping[str, Json]) -> Json:
    if answer.type is None:
        kinds = [
            kind.split(";")[0] for kind in (answer.media_type, *answer.alternative_types) if kind
        ]
        if not kinds:
            return {"description": answer.summary}
        text = {kind: {"schema": {"type": "string"}} for kind in kinds}
        return {"description": answer.summary, "content": text}
    content: Json = {"schema": described[repr(answer.type)]}
    if answer.example is not None:
        content["example"] = answer.example
    forms = {answer.media_type: content}
    forms |= {
        kind: {"schema": {"type": "string", "format": "binary"}}
        for kind in answer.alternative_types
    }
    return {"description": answer.summary, "content": forms}


def _error_response(route: RouteSpec, status: int, refusals: Iterable[type[SelectError]]) -> Json:
    """Return the response of a status with the codes of all its errors."""
    codes = {refusal.code: _first_sentence(refusal) for refusal in refusals}
    # An empty id makes the path match no route at all.
    if status == 404 and route.in_path is not None:
        codes[ROUTE_NOT_FOUND] = "The id in the path is empty."
    lines = [f"* `{code}`: {text}" if text else f"* `{code}`" for code, text in codes.items()]
    schema: Json = {**_ERROR, "properties": {"code": {"enum": sorted(codes)}}}
    headers: Json = {}
    if Overloaded in refusals:
        schema["properties"]["code"]["enum"].remove(Overloaded.code)
        schema = {"anyOf": [schema, {"$ref": "#/components/schemas/OverloadedBody"}]}
        headers = {"headers": {"Retry-After": _RETRY_AFTER}}
    if QuotaExceeded in refusals:
        headers = {"headers": {"Retry-After": _RETRY_AFTER}}
    example = {"error": "the fault and the expected value", "code": next(iter(codes))}
    return {
        "description": "\n".join(lines),
        **headers,
        "content": {JSON: {"schema": schema, "example": example}},
    }


_RETRY_AFTER: Json = {
    "description": "Estimated seconds until a retry can succeed; for admission and quotas.",
    "schema": {"type": "integer", "minimum": 1},
}


def _first_sentence(refusal: type[SelectError]) -> str:
    text = " ".join((refusal.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".") + "." if text else ""


# Schemas: msgspec's output, completed in place.


def _structs_of_routes(routes: Sequence[RouteSpec]) -> Iterator[tuple[type[msgspec.Struct], bool]]:
    """Yield every struct mentioned by a route, and whether a request may contain the struct."""
    requests = set(_structs_in(route.body.type for route in routes if route.body))
    every: set[type[msgspec.Struct]] = {
        ErrorBody,
        OverloadedBody,
        *_structs_in(kind for route in routes for kind in _body_types(route) if kind),
    }
    for struct in every:
        yield struct, struct in requests


def _structs_in(types: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield all structs reachable from the types, each once."""
    waiting = [inspect.type_info(kind) for kind in types]
    found: set[type[msgspec.Struct]] = set()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, inspect.StructType):
            if kind.cls in found:
                continue
            found.add(kind.cls)
            yield kind.cls
            waiting += [field.type for field in kind.fields]
        waiting += _component_types(kind)


def _component_types(kind: inspect.Type) -> list[inspect.Type]:
    """Return the component types of a type, except the fields of structs."""
    if isinstance(kind, inspect.Metadata):
        return [kind.type]
    if isinstance(kind, inspect.UnionType):
        return list(kind.types)
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.ListType):
        return [kind.item_type]
    return list(kind.item_types) if isinstance(kind, inspect.TupleType) else []


def _complete_schemas(components: Json, routes: Sequence[RouteSpec]) -> None:
    """Set the patterns of numeric keys and the fields always present in responses, in place."""
    for struct, in_request in _structs_of_routes(routes):
        schema = components[struct.__name__]
        info = inspect.type_info(struct)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            if any(_has_number_keys(part) for part in (field.type, *_component_types(field.type))):
                _as_object(schema["properties"][field.encode_name])["propertyNames"] = {
                    "pattern": U32_KEY
                }
            if field.encode_name == "worker_id":
                schema["properties"]["worker_id"] = dict(_U64_SCHEMA)
        if in_request:
            _relax_request_schema(schema)
        else:
            # msgspec requires only fields without a default; responses contain every field but
            # UNSET ones.
            schema["required"] = [
                field.encode_name
                for field in msgspec.structs.fields(struct)
                if field.default is not msgspec.UNSET
            ]


def _add_descriptions(components: Json, routes: Sequence[RouteSpec]) -> None:
    """Set the description of every field, in place."""
    for struct, _ in _structs_of_routes(routes):
        for name, text in field_texts(struct).items():
            components[struct.__name__]["properties"][name]["description"] = text


def _relax_request_schema(schema: Json) -> None:
    """Relax schemas of requests, which accept more than the struct: null for optional fields, in
    place.
    """
    schema.pop("additionalProperties", None)  # unknown fields cause a warning, not an error
    for name in schema["properties"].keys() - set(schema.get("required", ())):
        field: Json = schema["properties"][name]
        parts: list[Json] = field.get("anyOf", [field])
        if _NULL not in parts:
            # The default belongs to the field as a whole, not to one of the alternatives.
            default = {key: field.pop(key) for key in ("default",) if key in field}
            if default.get("default") in ([], {}):
                default = {}  # client generators accept only null as default here
            schema["properties"][name] = {"anyOf": [*parts, _NULL], **default}


def _add_warnings(components: Json, routes: Sequence[RouteSpec]) -> None:
    """Add the field `warnings` to the responses that may contain warnings, in place."""
    types = [a.type for route in routes for a in route.answers.values() if a.may_be_extended]
    for struct in (ErrorBody, *types):
        components[struct.__name__]["properties"]["warnings"] = _WARNINGS


def _has_number_keys(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.DictType) and isinstance(
        _without_metadata(kind.key_type), inspect.IntType
    )


def _without_metadata(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _as_object(schema: Json) -> Json:
    """Return the object among the alternatives of a field."""
    alternatives: list[Json] = schema.get("anyOf", [schema])
    return next(part for part in alternatives if part.get("type") == "object")


_U64_SCHEMA = msgspec.json.schema(U64)
_HASH_SCHEMA = msgspec.json.schema(Hash)


def _bound_integers(schema: Any) -> None:
    """Set both bounds and the format of 64-bit integers, in place."""
    if isinstance(schema, list):
        for part in schema:
            _bound_integers(part)
    if not isinstance(schema, dict):
        return
    if schema.items() >= _U64_SCHEMA.items():
        schema |= {"maximum": U64_MAX, "format": "uint64"}
    elif schema.items() >= _HASH_SCHEMA.items():
        schema |= {"minimum": I64_MIN, "maximum": U64_MAX}
    elif schema.get("type") == "integer" and schema.get("maximum") == 2**32 - 1:
        schema |= {"format": "uint32"}
    for part in list(schema.values()):
        _bound_integers(part)
