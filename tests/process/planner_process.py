"""The command `select-planner` as a process of its own."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.patience import eventually
from tests.process.launched import START_S_MAX, free_port, own_command, own_environment


class Planner:
    """config: what the file says, besides the port."""

    def __init__(self, folder: Path, config: dict[str, Any], *flags: str) -> None:
        self.port = free_port()
        path = folder / "planner.yaml"
        path.write_text(yaml.safe_dump({**config, "api": {"port": self.port}}))
        self._command = own_command(f"--config={path}", *flags, module="select_service.planner")
        self._log = folder / "planner.log"
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def send(self, method: str, path: str, body: Any) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        asked = urllib.request.Request(url, json.dumps(body).encode(), method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def status(self) -> Any:
        """Of the only deployment."""
        return self.get("/v1/status")["deployments"][0]

    def ticks_on(self, more: int = 2) -> Any:
        """The status after so many further ticks."""
        before = self.status()["ticks"]
        return eventually(lambda: (now := self.status())["ticks"] >= before + more and now)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(START_S_MAX)

    def restart(self) -> None:
        self.kill()
        self._start()

    def _start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=own_environment({})
            )
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            return bool(self.get("/v1/status")["deployments"])
        except OSError:
            return False
