"""EDGE: what a file says of a deployment -> the objects that observe and scale it."""

from collections.abc import Callable

from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.connectors.base import ConnectorError
from select_service.planner.connectors.opening import Surroundings, opened
from select_service.planner.edge.followed_tls import FollowedTls, client_files
from select_service.planner.edge.fpm_source import FpmPasses
from select_service.planner.edge.member import Member, Sources
from select_service.planner.edge.prometheus_source import PrometheusTraffic
from select_service.planner.edge.proposers import ExternalProposers
from select_service.planner.edge.selector_source import SelectorSource
from select_service.planner.outbound import Outbound


class Connecting:
    """What all deployments of a process share. clock: seconds that never go back"""

    def __init__(
        self,
        config: PlannerConfig,
        around: Surroundings,
        followed: FollowedTls,
        http: Outbound,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._around, self._http, self._clock = config, around, http, clock
        self._followed = followed
        self._proposers = ExternalProposers(config.proposers, http, clock)

    async def member(self, own: DeploymentConfig) -> Member:
        """Raises ConnectorError and ValueError, in one line, for what can never work."""
        sources = Sources(
            self._selectors(own),
            self._prometheus(own),
            None if own.fpm is None else FpmPasses(own.fpm),
            self._proposers,
            self._clock,
        )
        connector = await opened(own, self._around, sources.workers)
        try:
            await connector.validate()
        except ConnectorError:
            await connector.close()
            raise
        sources.begin()
        return Member(own, sources, connector)

    def _prometheus(self, own: DeploymentConfig) -> PrometheusTraffic | None:
        """Raises ValueError."""
        if own.prometheus is None:
            return None
        try:
            tls = self._followed.tls_of(client_files(own.prometheus.ca_file))
        except ValueError as error:
            raise ValueError(f"prometheus: ca_file: {error}") from None
        return PrometheusTraffic(own.prometheus, own.model_name, tls)

    def _selectors(self, own: DeploymentConfig) -> SelectorSource | None:
        if not self._config.selectors:
            return None
        return SelectorSource(
            self._config.selectors,
            self._http,
            own.model_name,
            own.tenant_id,
            self._clock,
            key_file=self._config.api_key_file,
        )
