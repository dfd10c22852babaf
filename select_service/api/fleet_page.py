"""Fleet page at /, its files, and the event stream that feeds the page.

The page loads no outside resources; its content security policy forbids them.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.fleet_frames import EVENT_STREAM, stream_frames
from select_service.api.process_limits import request_holder
from select_service.api.service_context import ServiceContext, request_grant
from select_service.api.static_files import CSS, HTML, JAVASCRIPT, SVG, StaticFiles
from select_service.auth.roles import ANYONE, CALLER, OPERATOR, tenant_scoped
from select_service.base.errors import CapacityExceeded, NotFound
from select_service.http.bounded_stream import BoundedStream
from select_service.http.endpoint import EndpointGroup, ResponseSpec, RouteSpec

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = Path(__file__).parent / "page"
_OWN_FILES = (
    *("api.js", "ask.js", "candidates.js", "charts.js", "decisions.js", "dom.js", "fleet.js"),
    *(
        "history.js",
        "icon.svg",
        "main.js",
        "numbers.js",
        "rank.js",
        "rates.js",
        "stream.js",
        "style.css",
    ),
    "tables.js",
)
_VENDORED_FILES = ("uPlot.esm.js", "uPlot.min.css")
FILES = StaticFiles(
    {name: _FOLDER / name for name in _OWN_FILES}
    | {name: _FOLDER / "uplot" / f"{name}.gz" for name in _VENDORED_FILES},
    max_age_s=0,
)
_INDEX = StaticFiles({"index.html": _FOLDER / "index.html"}, max_age_s=0)

PAGE = EndpointGroup("page", "Fleet page, and the event stream of the page.")


@PAGE.declare_route(
    RouteSpec(
        "GET",
        "/",
        "page",
        "Show the fleet as a live page",
        {200: ResponseSpec("HTML without outside resources.", None, media_type=HTML)},
        may_call=ANYONE,
    )
)
async def show_page(service: ServiceContext, request: Request) -> Response:
    answer = await _INDEX.serve_file(request, "index.html")
    answer.headers["content-security-policy"] = CONTENT_SECURITY_POLICY
    answer.headers["referrer-policy"] = "no-referrer"
    return answer


@PAGE.declare_route(
    RouteSpec(
        "GET",
        "/page/{file}",
        "page_file",
        "Get a file of the page",
        {
            200: ResponseSpec(
                "Script, style sheet or picture.",
                None,
                media_type=JAVASCRIPT,
                alternative_types=(CSS, SVG),
            )
        },
        may_call=ANYONE,
        in_path=FILES.file_parameter("main.js"),
        refusals=(NotFound,),
    )
)
async def show_page_file(service: ServiceContext, request: Request, name: str) -> Response:
    return await FILES.serve_file(request, name)


@PAGE.declare_route(
    RouteSpec(
        "GET",
        "/live",
        "stream_fleet",
        "Stream the fleet in numbers once a second, as server-sent events",
        {200: ResponseSpec("Events until the client disconnects.", None, media_type=EVENT_STREAM)},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Feeds the page at `/`. The fields of the events `history` (sent once) and `fleet` "
        "may change in any release. Very large fleets get events less often.",
        refusals=(CapacityExceeded,),
    )
)
async def stream_live(service: ServiceContext, request: Request) -> Response:
    if request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)  # the body of GET would never end
    content = stream_frames(service, request_grant(request))
    headers = {"cache-control": "no-store"}
    limit, holder = service.limits.live_streams, request_holder(request)
    return BoundedStream(limit, holder, content, headers, EVENT_STREAM)
