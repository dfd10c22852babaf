"""Loading of plugins from the configuration."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Final

from select_service.net.tls.tls_paths import ClientTlsPaths
from select_service.planner.config import PlannerConfig, PluginConfig
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.in_process_plugin import InProcessPlugin
from select_service.planner.plugins.plugin_port import PluginPort

ENTRY_POINTS: Final = "select_service.planner_plugins"
"""Group of entry points with the classes of plugins."""


class PluginLoadError(Exception):
    """Error of one line: a plugin that can never be called."""


def plugin_deployments(config: PlannerConfig, plugin: PluginConfig) -> list[str]:
    """Return the deployments of a plugin: those named, or all."""
    return list(plugin.deployments) or [each.name for each in config.deployments]


def describe_plugins(config: PlannerConfig, *, loads: bool = True) -> Iterator[str]:
    """Yield a line for each plugin. Raises PluginLoadError.

    loads: whether the classes are loaded
    """
    for plugin in config.plugins:
        if loads and plugin.url is None:
            make_objects(plugin, plugin_deployments(config, plugin))
        place = plugin.class_path or plugin.url or f"entry point {plugin.entry_point}"
        yield f"{plugin.name} ({plugin.stage}, {place})"


def open_port(
    config: PlannerConfig, plugin: PluginConfig, http: PlannerHttpClient, tls: ClientTlsPaths
) -> PluginPort:
    """Return the way to a plugin. Raises PluginLoadError."""
    if plugin.url is None:
        return InProcessPlugin(
            plugin.name, make_objects(plugin, plugin_deployments(config, plugin))
        )
    if plugin.url.startswith("http"):
        from select_service.planner.plugins.http_plugin import HttpPlugin

        return HttpPlugin(plugin, http)
    # Imported only here: grpc is an extra, and takes 20 MB of memory.
    from select_service.planner.plugins.grpc_plugin import GrpcPlugin

    return GrpcPlugin(plugin, tls)


def make_objects(plugin: PluginConfig, deployments: list[str]) -> Mapping[str, object]:
    """Return an object of the plugin's class for each deployment. Raises PluginLoadError."""
    try:
        make = _load_class(plugin)
        found = {name: make(**plugin.options) for name in deployments}
    except PluginLoadError:
        raise
    except BaseException as error:  # code of others may raise anything, also SystemExit
        text = str(error).partition("\n")[0]
        raise PluginLoadError(
            f"plugin `{plugin.name}` cannot be made: {type(error).__name__}: {text}"
        ) from None
    for each in found.values():
        if not callable(getattr(each, plugin.stage, None)):
            raise PluginLoadError(
                f"plugin `{plugin.name}`: {type(each).__name__} has no method `{plugin.stage}`"
            )
    return found


def _load_class(plugin: PluginConfig) -> Callable[..., object]:
    """Return the class of a plugin. Raises PluginLoadError, and whatever its module raises."""
    if plugin.class_path is None:
        found = list(entry_points(group=ENTRY_POINTS, name=plugin.entry_point or ""))
        if not found:
            names = ", ".join(sorted(each.name for each in entry_points(group=ENTRY_POINTS)))
            raise PluginLoadError(
                f"plugin `{plugin.name}`: no entry point `{plugin.entry_point}` in the group "
                f"{ENTRY_POINTS}; installed: {names or 'none'}"
            )
        loaded: Callable[..., object] = found[0].load()
        return loaded
    module, _, name = plugin.class_path.partition(":")
    found_class: Callable[..., object] | None = getattr(importlib.import_module(module), name, None)
    if found_class is None:
        raise PluginLoadError(f"plugin `{plugin.name}`: module {module} has no class `{name}`")
    return found_class
