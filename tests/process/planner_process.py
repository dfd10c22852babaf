"""The command `select-planner` as a separate process."""

import json
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.builders.launched_process import LaunchedProcess, free_port, own_command, own_environment
from tests.builders.polling import eventually
from tests.builders.running import Client


class Planner:
    """Handle of a planner process.

    config: contents of the configuration file, without the port
    """

    def __init__(self, folder: Path, config: dict[str, Any], *flags: str) -> None:
        self.port = free_port()
        self._config, self._path = config, folder / "planner.yaml"
        self._command = own_command(
            f"--config={self._path}", *flags, module="select_service.planner"
        )
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def send(self, method: str, path: str, body: Any) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def client(self) -> Client:
        return Client(self.port)

    def status(self) -> Any:
        """Return the status of the only deployment."""
        return self.get("/v1/status")["deployments"][0]

    def ticks_on(self, more: int = 2) -> Any:
        """Return the status after this many further ticks."""
        before = self.status()["ticks"]
        return eventually(lambda: (now := self.status())["ticks"] >= before + more and now)

    def restart(self) -> None:
        """Kill the planner and start again with the present `config`."""
        self.process.kill()
        self._start()

    def _start(self) -> None:
        document = {**self._config, "api": {"port": self.port}}
        self._path.write_text(yaml.safe_dump(document))
        self.process = LaunchedProcess(self._command, own_environment({}), self.port)
        self.process.wait_until_healthy("/healthz")
        eventually(lambda: self.get("/v1/status")["deployments"])
