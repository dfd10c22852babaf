"""Factory of the objects that observe and scale a deployment."""

from collections.abc import Callable

from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.connectors.connector import ConnectorError
from select_service.planner.connectors.factory import ConnectorEnvironment, make_connector
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.plugin_host import HostedPlugin, PluginHost
from select_service.planner.plugins.plugin_loader import open_port, plugin_deployments
from select_service.planner.runtime.deployment_runner import DeploymentRunner, DeploymentSources
from select_service.planner.runtime.forward_pass_source import ForwardPassReceiver
from select_service.planner.runtime.prometheus_source import PrometheusTraffic
from select_service.planner.runtime.selector_source import SelectorSource
from select_service.planner.runtime.watched_tls import WatchedTls, client_files


class MemberFactory:
    """Objects shared by all deployments of a process.

    clock: monotonic seconds. Raises PluginLoadError for a plugin that can never be called.
    """

    def __init__(
        self,
        config: PlannerConfig,
        environment: ConnectorEnvironment,
        watched_tls: WatchedTls,
        http: PlannerHttpClient,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._around, self._http, self._clock = config, environment, http, clock
        self._followed = watched_tls
        tls = client_files(config.ca_file, config.client_cert_file, config.client_key_file)
        plugins = [
            HostedPlugin(each, open_port(config, each, http, tls), plugin_deployments(config, each))
            for each in config.plugins
        ]
        self.plugins = PluginHost(plugins, clock)

    async def member(self, deployment: DeploymentConfig) -> DeploymentRunner:
        """Build the runner of a deployment.

        Raises ConnectorError and ValueError, in one line, for a configuration that can never work.
        """
        sources = DeploymentSources(
            self._make_selector_source(deployment),
            self._make_prometheus_source(deployment),
            None if deployment.fpm is None else ForwardPassReceiver(deployment.fpm),
            self.plugins,
            self._clock,
        )
        connector = await make_connector(deployment, self._around, sources.serving_workers)
        try:
            await connector.validate()
        except ConnectorError:
            # An opened connector may hold connections and a place in an election.
            await connector.close()
            raise
        sources.start_receiving()
        return DeploymentRunner(deployment, sources, connector)

    def _make_prometheus_source(self, deployment: DeploymentConfig) -> PrometheusTraffic | None:
        """Build the Prometheus source, or None. Raises ValueError."""
        if deployment.prometheus is None:
            return None
        try:
            tls = self._followed.tls_for(client_files(deployment.prometheus.ca_file))
        except ValueError as error:
            raise ValueError(f"prometheus: ca_file: {error}") from None
        return PrometheusTraffic(deployment.prometheus, deployment.model_name, tls)

    def _make_selector_source(self, deployment: DeploymentConfig) -> SelectorSource | None:
        """Build the selector source, or None."""
        if not self._config.selectors:
            return None
        return SelectorSource(
            self._config.selectors,
            self._http,
            deployment.model_name,
            deployment.tenant_id,
            self._clock,
            key_file=self._config.api_key_file,
        )
