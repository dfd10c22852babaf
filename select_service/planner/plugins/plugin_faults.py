"""Validation of the plugins of a file: one line for each fault."""

import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from select_service.base.suggestions import nearest_name, printable_name
from select_service.net.urls import service_url_error
from select_service.planner.config import PlannerConfig, PluginConfig
from select_service.planner.core.stages import BUILTIN_SOURCES

_CLASS_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_GRPC: Final = {"grpc": "http", "grpcs": "https"}
"""Schemes of gRPC, with the schemes that give them their rules."""


def find_plugin_faults(config: PlannerConfig) -> Iterator[str]:
    """Yield the faults of all plugins."""
    names = Counter(plugin.name for plugin in config.plugins)
    for name in sorted(name for name, times in names.items() if times > 1):
        yield f"plugins: name `{printable_name(name)}` is given twice: make names unique"
    deployments = [each.name for each in config.deployments]
    for plugin in config.plugins:
        for fault in _plugin_faults(plugin, deployments):
            yield f"plugin `{printable_name(plugin.name)}`: {fault}"


def _plugin_faults(plugin: PluginConfig, deployments: list[str]) -> Iterator[str]:
    """Yield the faults of a plugin."""
    if plugin.name in BUILTIN_SOURCES:
        yield f"name: expected another name than the builtin loops {', '.join(BUILTIN_SOURCES)}"
    places = (plugin.class_path, plugin.entry_point, plugin.url)
    if sum(place is not None for place in places) != 1:
        yield "expected one of class, entry_point and url"
    if plugin.class_path is not None and not _CLASS_PATH.fullmatch(plugin.class_path):
        yield f"class: expected package.module:Class, got `{printable_name(plugin.class_path)}`"
    for name in plugin.deployments:
        if name not in deployments:
            meant = nearest_name(name, tuple(deployments))
            hint = "" if meant is None else f"; did you mean `{meant}`?"
            yield f"deployments: `{printable_name(name)}` is not in the file{hint}"
    if plugin.url is None:
        for field in ("heartbeat_s", "token_file"):
            if getattr(plugin, field) is not None:
                yield f"{field}: only plugins with a url have one"
        return
    if plugin.options:
        yield "options: only classes have them; a server has its own configuration"
    if fault := _url_fault(plugin.url):
        yield f"url `{printable_name(plugin.url)}`: {fault}"
    if plugin.url.startswith("grpc") and find_spec("grpc") is None:
        yield "url: gRPC needs: pip install 'select-service[grpc]'"


def _url_fault(url: str) -> str | None:
    """Return what is wrong with the URL of a plugin, or None."""
    scheme, separator, rest = url.partition("://")
    if scheme not in _GRPC:
        fault = service_url_error(url)
        begins = fault is not None and fault.startswith("it does not begin")
        return "it does not begin with http://, https://, grpc:// or grpcs://" if begins else fault
    http_url = _GRPC[scheme] + separator + rest
    if fault := service_url_error(http_url):
        return fault
    parts = urlsplit(http_url)
    if parts.port is None or parts.path not in ("", "/"):
        return "expected grpc://host:port, without a path"
    return None
