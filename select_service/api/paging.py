"""Paging and compact form of long lists of workers, as requested by the query."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from msgspec import Meta
from starlette.responses import Response

from select_service.api.request_parameters import parse_choice, parse_number
from select_service.auth.guard import Grant
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.http.endpoint import QueryParameter
from select_service.schemas.common import U64, U64_MAX

PAGE_WORKERS_MAX = 4096
_VIEW = QueryParameter(
    "view", Literal["full", "compact"], "`compact`: names and numbers of ranks as columns.", "full"
)
PAGES = (
    _VIEW,
    QueryParameter(
        "limit",
        Annotated[int, Meta(ge=1, le=PAGE_WORKERS_MAX)],
        "Maximum number of workers, in the order of ids; a `link` header leads to the next page.",
    ),
    QueryParameter("after", U64, "Only workers with higher ids."),
)


class WorkerPage(NamedTuple):
    """Page of workers, grouped by partition.  next: id of the last worker; None means the last
    page
    """

    workers: list[RegisteredWorker]
    next: int | None


def make_page(
    grant: Grant, workers: Iterable[RegisteredWorker], query: Mapping[str, str]
) -> WorkerPage:
    """Return the requested page of the workers visible to the caller; all without `limit` and
    `after`.

    Raises BadRequest.
    """
    limit = parse_number(query, "limit", 1, PAGE_WORKERS_MAX)
    after = parse_number(query, "after", 0, U64_MAX)
    found = [worker for worker in workers if grant.can_see_tenant(worker.key.tenant_id)]
    if after is not None:
        found = [worker for worker in found if worker.worker_id > after]
    if limit is None or len(found) <= limit:
        return WorkerPage(found, None)
    # Pages are cut by id over all partitions, although rows stay grouped by partition.
    last = nsmallest(limit, (worker.worker_id for worker in found))[-1]
    return WorkerPage([worker for worker in found if worker.worker_id <= last], last)


def wants_compact(query: Mapping[str, str]) -> bool:
    """Return whether `view` is `compact`.

    Raises BadRequest for values other than full and compact.
    """
    return parse_choice(query, "view", ("full", "compact")) == "compact"


def wants_page(query: Mapping[str, str]) -> bool:
    return "limit" in query or "after" in query


def add_next_link(
    response: Response, path: str, query: Mapping[str, str], page: WorkerPage
) -> Response:
    """Return the response, with a `link` header if there is a next page."""
    if page.next is not None:
        target = f"{path}?{urlencode({**query, 'after': page.next})}"
        response.headers["link"] = f'<{target}>; rel="next"'
    return response
