# ruff: noqa: E501 -- long lines are lines of the page
"""Page of all HTTP routes and the roles that may call them, from the declared routes."""

from scripts.docs.markdown import marked, table
from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.auth.roles import ROLES
from select_service.http.endpoint import RouteSpec

INTRODUCTION = """\
# Routes

All routes of the HTTP API with the roles of API keys that may call them. The columns apply with `--api-keys-file`;
without keys every caller may call every route. `GET /docs` and `GET /openapi.json` of a running service describe each
field; [the API guide](api.md) explains how the routes work together.

* `ok`: keys of the role are allowed.
* `tenants`: allowed, also for keys that are bound to tenants, within their tenants.
* `open`: allowed without a key.
* empty: refused with 403 `forbidden`.
"""


def routes_page() -> str:
    """Return the page with one table of all routes."""
    routes = [endpoint.route for noun in ENDPOINT_GROUPS for endpoint in noun.endpoints]
    rows = [
        (f"`{route.method} {route.path}`", *(_cell(route, role) for role in ROLES), route.summary)
        for route in routes
    ]
    return marked(__name__, INTRODUCTION + "\n" + table(("route", *ROLES, "purpose"), rows))


def _cell(route: RouteSpec, role: str) -> str:
    may_call = route.may_call
    if not may_call.roles:
        return "open"
    if role not in may_call.roles:
        return ""
    return "tenants" if may_call.is_scoped and role in ("caller", "operator") else "ok"
