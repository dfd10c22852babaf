"""Report, drawn in a thread; also as a file at an interval."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from select_service.files.atomic_file import open_regular, write_whole
from select_service.planner.config import ReportFileConfig
from select_service.planner.deployment_status import DeploymentStatus, DeploymentStatuses
from select_service.planner.report.report_page import PAGE_BEGIN, render_page
from select_service.planner.report.report_views import make_view

log = logging.getLogger("select_service.planner")


def find_report_error(path: Path) -> str | None:
    """Return why no report can be written to a path, or None."""
    if not path.parent.is_dir():
        return f"directory {path.parent} does not exist: create it or give another path"
    try:
        with open_regular(path) as file:
            begin = file.read(len(PAGE_BEGIN))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot use `{path}`: {error.strerror}"
    if begin in (b"", PAGE_BEGIN):
        return None
    return f"`{path}` is not a planner report and would be overwritten: name another file"


async def write_reports(config: ReportFileConfig | None, statuses: DeploymentStatuses) -> None:
    """Write the report for ever; a write error is retried at the next interval."""
    if config is None:
        return
    while True:
        await asyncio.sleep(config.interval_s)
        page = await draw_report(statuses)
        try:
            await asyncio.to_thread(write_whole, Path(config.path), page)
        except OSError as error:
            fields = {"path": config.path, "error": str(error)}
            log.warning("report not written", extra={"fields": fields})


async def draw_report(statuses: Iterable[DeploymentStatus]) -> bytes:
    """Return the page. Each deployment is copied and thinned before the next is copied."""
    # Copied on the event loop, where no tick can change it; thinned in a thread, as that takes
    # long.
    views = [await asyncio.to_thread(make_view(status).with_drawable_ticks) for status in statuses]
    return await asyncio.to_thread(render_page, views)
