"""Long lists of workers, some at a time or in a compact form: what asks for it."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from msgspec import Meta
from starlette.responses import Response

from select_service.access.guard import Grant
from select_service.api.parameters import query_number, query_word
from select_service.bodies.common import U64, U64_MAX
from select_service.core.workers.catalog import Worker
from select_service.http.endpoint import QueryParameter

PAGE_WORKERS_MAX = 4096
_VIEW = QueryParameter(
    "view", Literal["full", "compact"], "`compact`: columns of names and numbers.", "full"
)
PAGES = (
    _VIEW,
    QueryParameter(
        "limit",
        Annotated[int, Meta(ge=1, le=PAGE_WORKERS_MAX)],
        "Only so many workers, by their ids; a `link` header leads to the next page.",
    ),
    QueryParameter("after", U64, "Only workers with higher ids."),
)


class Page(NamedTuple):
    """Some workers, those of a partition together.  next: id of the last; None: no more follow"""

    workers: list[Worker]
    next: int | None


def page_of(grant: Grant, workers: Iterable[Worker], query: Mapping[str, str]) -> Page:
    """What a query asks for of the workers that the caller may see: without `limit` and `after`
    all of them.

    Raises BadRequest.
    """
    limit = query_number(query, "limit", 1, PAGE_WORKERS_MAX)
    after = query_number(query, "after", 0, U64_MAX)
    found = [worker for worker in workers if grant.sees(worker.key.tenant_id)]
    if after is not None:
        found = [worker for worker in found if worker.worker_id > after]
    if limit is None or len(found) <= limit:
        return Page(found, None)
    last = nsmallest(limit, (worker.worker_id for worker in found))[-1]
    return Page([worker for worker in found if worker.worker_id <= last], last)


def is_compact(query: Mapping[str, str]) -> bool:
    """Raises BadRequest when `view` is neither `full` nor `compact`."""
    return query_word(query, "view", ("full", "compact")) == "compact"


def is_paged(query: Mapping[str, str]) -> bool:
    return "limit" in query or "after" in query


def linked(response: Response, path: str, query: Mapping[str, str], page: Page) -> Response:
    """With the header that leads to the page after this one."""
    if page.next is not None:
        target = f"{path}?{urlencode({**query, 'after': page.next})}"
        response.headers["link"] = f'<{target}>; rel="next"'
    return response
