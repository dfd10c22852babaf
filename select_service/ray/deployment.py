"""Selectors as named actors of Ray: start, search by name, removal.

The names of living actors are the list of selectors, and each actor returns its address. No other
list has to be updated when actors restart on other nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import ray

from select_service.ray.child_process import START_S_MAX
from select_service.ray.credentials import Credentials
from select_service.ray.deployment_members import NAMESPACE, fetch_addresses, list_members
from select_service.ray.exposure import check_exposure
from select_service.ray.selector_actor import SelectorActor

NAME = "select-service"
PORT = 8092
REPLICAS_MAX = 16
"""Largest number of selectors; each listens to all others, and reads its index from at most 16."""
ANSWER_S_MAX = 5.0
"""Time limit for the address of an actor, in seconds; restarting actors are left out."""


def deploy(
    replicas: int = 2,
    *,
    name: str = NAME,
    port: int = PORT,
    flags: Sequence[str] = (),
    num_cpus: float = 1,
    environment: Mapping[str, str] | None = None,
    api_key_file: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
) -> list[str]:
    """Start selectors, as replicas of each other, spread over the nodes.

    Running selectors of this name are not changed, so a second call adds only missing selectors.
    port: HTTP port of the first selector, with the next port for replica synchronization. The
        second selector has the following two, and so on; a port in use is replaced by any free
        port.
    flags: flags of the command `select-service`, such as `("--policy", "least_work")`. The
        selectors listen on all addresses of their nodes, so `--api-keys-file` or `insecure` is
        required.
    num_cpus: CPUs that Ray reserves for each.  environment: variables of each process.
    api_key_file: file on every node with the key of the selectors, roles operator and replica;
        required if `flags` have `--api-keys-file`.
    ca_file: PEM file on every node with the trusted CAs, for `flags` with `--tls-cert`.
    insecure: accept calls without a key from the whole network.
    Returns the URLs of all selectors after the first answer of each. Raises ValueError,
    RayActorError, and GetTimeoutError if a start takes more than START_S_MAX seconds.
    """
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ValueError(f"replicas: expected 1 to {REPLICAS_MAX}, got {replicas}")
    variables = dict(environment or {})
    check_exposure(flags, variables, api_key_file, insecure=insecure)
    if not ray.is_initialized():
        ray.init()
    credentials = Credentials(api_key_file, ca_file)
    options = {
        "namespace": NAMESPACE,
        # Detached, so that selectors outlive the starting program.
        "lifetime": "detached",
        # A second call returns the running actor instead of an error.
        "get_if_exists": True,
        # Without a limit, because a node may fail any number of times.
        "max_restarts": -1,
        "scheduling_strategy": "SPREAD",
        "num_cpus": num_cpus,
    }
    actors = [
        ray.remote(SelectorActor)
        .options(name=f"{name}-{index}", **options)
        .remote(name, port + 2 * index, tuple(flags), variables, credentials)
        for index in range(replicas)
    ]
    answers = [actor.address.remote() for actor in actors]
    return [address.url for address in ray.get(answers, timeout=START_S_MAX)]


def find(name: str = NAME) -> list[str]:
    """Return the URLs of the selectors of this name that answer now.

    Raises LookupError if no selector answers.
    """
    found = fetch_addresses(list_members(name), ANSWER_S_MAX)
    if not found:
        raise LookupError(
            f"no selector named {name!r} answers: start them with select_service.ray.deploy"
        )
    return [found[actor_name].url for actor_name in sorted(found)]


def make_lookup(selectors: str | Sequence[str]) -> Callable[[], Sequence[str]]:
    """Return a function that looks the selectors up: by name, or as a constant list of URLs."""
    if isinstance(selectors, str):
        return lambda: find(selectors)
    return lambda: selectors


def remove(name: str = NAME) -> None:
    """End all selectors of this name and their processes."""
    for actor_name in list_members(name):
        # The actor may have ended since the list was read.
        with suppress(ValueError):
            ray.kill(ray.get_actor(actor_name, namespace=NAMESPACE), no_restart=True)
