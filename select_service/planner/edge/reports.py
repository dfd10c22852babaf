"""EDGE: the report, drawn in a thread; as a file, anew every so often."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from select_service.planner.config import ReportConfig
from select_service.planner.report.drawing import check_format, drawing_of
from select_service.planner.report.page import BEGIN, page_of
from select_service.planner.report.views import view_of
from select_service.planner.status import DeploymentStatus, Statuses
from select_service.whole_file import open_regular, write_whole

log = logging.getLogger("select_service.planner")


def report_error(path: Path) -> str | None:
    """Why no report can be written there; None when one can."""
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    try:
        with open_regular(path) as file:
            begin = file.read(len(BEGIN))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot use `{path}`: {error.strerror}"
    if begin in (b"", BEGIN):
        return None
    return f"`{path}` is no report of ours and would be lost: name another file"


async def write_reports(config: ReportConfig | None, statuses: Statuses) -> None:
    """For ever; a file that cannot be written is tried again the next time."""
    if config is None:
        return
    while True:
        await asyncio.sleep(config.interval_s)
        page = await report_of(statuses)
        try:
            await asyncio.to_thread(write_whole, Path(config.path), page)
        except OSError as error:
            fields = {"path": config.path, "error": str(error)}
            log.warning("the report cannot be written", extra={"fields": fields})


async def report_of(chosen: Iterable[DeploymentStatus], name: str = "svg") -> bytes:
    """What is shown is copied, a deployment at a time, and thinned before the next is copied.

    name: of the format.  Raises FormatError.
    """
    check_format(name)
    views = [await asyncio.to_thread(view_of(status).slim) for status in chosen]
    return await asyncio.to_thread(lambda: page_of(views, drawing=drawing_of(name)))
