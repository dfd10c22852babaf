"""EDGE: the report as a file, anew every so often."""

import asyncio
import logging
from pathlib import Path

from select_service.planner.config import ReportConfig
from select_service.planner.connectors.whole_file import write_whole
from select_service.planner.report.page import page_of
from select_service.planner.report.views import view_of
from select_service.planner.status import Statuses

log = logging.getLogger("select_service.planner")


async def write_reports(config: ReportConfig | None, statuses: Statuses) -> None:
    """For ever; a file that cannot be written is tried again the next time."""
    if config is None:
        return
    while True:
        await asyncio.sleep(config.interval_s)
        views = [view_of(status) for status in statuses]
        try:
            page = await asyncio.to_thread(page_of, views)
            await asyncio.to_thread(write_whole, Path(config.path), page)
        except OSError as error:
            fields = {"path": config.path, "error": str(error)}
            log.warning("the report cannot be written", extra={"fields": fields})
