"""What TLS costs the service: CPU of a POST /select on a kept connection, and of a handshake.

    python -m scripts.bench.tls [--rounds 5]

Real processes, one with plain HTTP and one each with a certificate on P-256 and of RSA 2048, asked
in turns over loopback, one request at a time: 256 tokens, 8 ranks.  CPU is that of the thread of
the event loop; handshakes are full ones, each of a connection that then ends.  Needs Linux and
openssl.
"""

import argparse
import contextlib
import ssl
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.builders import worker_body
from tests.process.running import Client, Running, request
from tests.process.tls_running import TlsRunning
from tests.tls.certificates import Authority, Issued, ask, authority, believing
from tests.tls.served import TlsClient

REQUESTS, HANDSHAKES, IDLE = 5_000, 300, 200
SELECT = request("POST", "/select", {"model_name": "m", "token_ids": list(range(256))})


def cpu_us(service: Running) -> float:
    """Of the first thread, which is that of the event loop."""
    return int(Path(f"/proc/{service.process.pid}/schedstat").read_text().split()[0]) / 1000


def resident_kib(service: Running) -> int:
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def per_select(service: Running) -> float:
    with service.client() as client:
        client.send(SELECT)
        assert client.answer().status == 200
        begin = cpu_us(service)
        for _ in range(REQUESTS):
            client.send(SELECT)
            client.answer()
        return (cpu_us(service) - begin) / REQUESTS


def per_connection(service: Running) -> float:
    """Opened, perhaps with a handshake, used for one request that compiled code answers, closed."""
    trust = getattr(service, "trust", None)
    begin = cpu_us(service)
    for _ in range(HANDSHAKES):
        with opened(service.port, trust) as client:
            client.send(SELECT)
            client.answer()
    return (cpu_us(service) - begin) / HANDSHAKES


def per_idle_kib(service: Running) -> float:
    """Memory of a connection that has been used once."""
    with contextlib.ExitStack() as stack:
        begin = resident_kib(service)
        for _ in range(IDLE):
            client = stack.enter_context(service.client())
            client.send(SELECT)
            client.answer()
        return (resident_kib(service) - begin) / IDLE


def opened(port: int, trust: ssl.SSLContext | None) -> Client:
    return Client(port) if trust is None else TlsClient(port, trust)


def of_rsa(folder: Path, issuer: Authority) -> Issued:
    """Signed by itself, and so believed: what is measured is the handshake."""
    made = Issued(folder / "rsa.pem", folder / "rsa.key")
    ask(
        *("req", "-x509", "-days", "2", "-subj", "/CN=bench", "-newkey", "rsa:2048", "-nodes"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", made.key, "-out", made.certificate),
    )
    with issuer.file.open("ab") as file:
        file.write(made.certificate.read_bytes())
    return made


def shown(name: str, found: dict[str, list[float]], unit: str) -> None:
    print(name)
    for kind, values in found.items():
        low, high = min(values), max(values)
        print(f"  {kind:8} {statistics.median(values):8.1f} {unit}  ({low:.1f} to {high:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measures: dict[str, tuple[Callable[[Running], float], str]] = {
        "POST /select on a kept connection, CPU": (per_select, "us"),
        "a connection for one of them, CPU": (per_connection, "us"),
        "an idle connection, memory": (per_idle_kib, "KiB"),
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rsa = of_rsa(folder, authority())
        services = {
            "plain": stack.enter_context(Running()),
            "P-256": stack.enter_context(TlsRunning(authority().issue())),
            "RSA 2048": stack.enter_context(TlsRunning(rsa)),
        }
        services["RSA 2048"].trust = believing(authority().file)  # type: ignore[attr-defined]
        for service in services.values():
            assert (
                service.call("POST", "/workers", worker_body(1, data_parallel_size=8)).status == 201
            )
        for name, (measure, unit) in measures.items():
            found: dict[str, list[float]] = {kind: [] for kind in services}
            for number in range(rounds if unit == "us" else 1):
                for kind in services if number % 2 else reversed(list(services)):
                    found[kind].append(measure(services[kind]))
            shown(name, found, unit)


if __name__ == "__main__":
    main()
