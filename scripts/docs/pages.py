"""The generated pages by file name."""

from collections.abc import Callable, Mapping

from scripts.docs.alerts_page import alerts_page
from scripts.docs.differences_page import differences_page
from scripts.docs.doctor_page import doctor_page
from scripts.docs.planner_page import planner_page
from scripts.docs.plugin_schema import plugin_schema
from scripts.docs.routes_page import routes_page
from scripts.docs.settings_page import settings_page

PAGES: Mapping[str, Callable[[], str]] = {
    "alerts.md": alerts_page,
    "doctor-codes.md": doctor_page,
    "dynamo-differences.md": differences_page,
    "planner-file.md": planner_page,
    "planner-plugin.schema.json": plugin_schema,
    "routes.md": routes_page,
    "settings.md": settings_page,
}
