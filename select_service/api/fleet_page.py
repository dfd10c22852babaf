"""The page at / that shows the fleet, its files, and the stream that it reads.

The page loads nothing from elsewhere, and its content security policy would not let it.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import ANYONE, CALLER, OPERATOR, within_tenants
from select_service.api.limits import holder_of
from select_service.api.live import EVENT_STREAM, events
from select_service.api.service import Service, grant_of
from select_service.api.static_files import HTML, IMAGE, JAVASCRIPT, STYLES, StaticFiles
from select_service.errors import CapacityExceeded, NotFound
from select_service.http.endpoint import Answer, Noun, Route
from select_service.http.streams import BoundedStream

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = Path(__file__).parent / "page"
_OWN = (
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
_OF_OTHERS = ("uPlot.esm.js", "uPlot.min.css")
FILES = StaticFiles(
    {name: _FOLDER / name for name in _OWN}
    | {name: _FOLDER / "uplot" / f"{name}.gz" for name in _OF_OTHERS},
    max_age_s=0,
)
_INDEX = StaticFiles({"index.html": _FOLDER / "index.html"}, max_age_s=0)

PAGE = Noun("page", "The fleet as a page, and as the stream that the page reads.")


@PAGE.declare(
    Route(
        "GET",
        "/",
        "page",
        "The fleet as a page that follows it",
        {200: Answer("HTML without outside resources.", None, media_type=HTML)},
        may_call=ANYONE,
    )
)
async def page(service: Service, request: Request) -> Response:
    answer = await _INDEX.answer(request, "index.html")
    answer.headers["content-security-policy"] = POLICY
    answer.headers["referrer-policy"] = "no-referrer"
    return answer


@PAGE.declare(
    Route(
        "GET",
        "/page/{file}",
        "page_file",
        "What the page loads",
        {
            200: Answer(
                "Script, style sheet or picture.", None, media_type=JAVASCRIPT, also=(STYLES, IMAGE)
            )
        },
        may_call=ANYONE,
        in_path=FILES.parameter("main.js"),
        refusals=(NotFound,),
    )
)
async def page_file(service: Service, request: Request, name: str) -> Response:
    return await FILES.answer(request, name)


@PAGE.declare(
    Route(
        "GET",
        "/live",
        "stream_fleet",
        "The fleet in numbers once a second, as server-sent events",
        {200: Answer("Events until the client leaves.", None, media_type=EVENT_STREAM)},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="What the page at `/` shows. Its events `history` (once) and `fleet` may get other "
        "fields in any release. Of a fleet of very many ranks they come less often.",
        refusals=(CapacityExceeded,),
    )
)
async def live(service: Service, request: Request) -> Response:
    if request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)  # what follows has no end
    content = events(service, grant_of(request))
    headers = {"cache-control": "no-store"}
    limit, holder = service.limits.live_streams, holder_of(request)
    return BoundedStream(limit, holder, content, headers, EVENT_STREAM)
