"""Selectors as named actors of Ray: started, found by name, ended.

Nobody owns the list of them: the names of living actors are the list, and each actor says where
its service is.  So there is nothing to keep in step when actors restart on other nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import ray

from select_service.ray.credentials import Credentials
from select_service.ray.exposure import check_exposure
from select_service.ray.members import NAMESPACE, addresses, members
from select_service.ray.process import START_S_MAX
from select_service.ray.selector_actor import SelectorActor

NAME = "select-service"
PORT = 8092
REPLICAS_MAX = 16
"""As many as a selector may take its index from, and everybody listens to everybody."""
ANSWER_S_MAX = 5.0
"""How long an actor may take to say where its service is; a restarting one is left out."""


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
    """Start so many selectors, as replicas of each other, on as many nodes as there are.

    What already runs under this name stays as it is, so calling it again adds what is missing.
    port: the first of them serves here and tells its bookings at the next port, the second at
        the two after that, and so on; where one is taken, at any that is free.
    flags: of the command `select-service`, such as `("--policy", "least_work")`.  The selectors
        listen on all addresses of their nodes, so `--api-keys-file` or `insecure` is needed.
    num_cpus: what Ray reserves for each.  environment: variables of each process.
    api_key_file: on every node, the key that they show to each other, of the roles operator and
        replica; needed where `flags` have `--api-keys-file`.
    ca_file: on every node, whom they believe, where `flags` have `--tls-cert`.
    insecure: everybody who reaches the nodes may call everything, which is meant.
    Returns the URLs of all, once they answer.  Raises ValueError, RayActorError, and
    GetTimeoutError when one takes more than START_S_MAX seconds.
    """
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ValueError(f"replicas: {replicas} is not 1 to {REPLICAS_MAX}")
    variables = dict(environment or {})
    check_exposure(flags, variables, api_key_file, insecure=insecure)
    if not ray.is_initialized():
        ray.init()
    credentials = Credentials(api_key_file, ca_file)
    options = {
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
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
    """The URLs of the selectors of this name that answer now, for programs that Ray knows.

    Raises LookupError when there is none.
    """
    found = addresses(members(name), ANSWER_S_MAX)
    if not found:
        raise LookupError(
            f"no selector named {name!r} answers; select_service.ray.deploy starts them"
        )
    return [found[actor_name].url for actor_name in sorted(found)]


def found_by(selectors: str | Sequence[str]) -> Callable[[], Sequence[str]]:
    """Where to look for selectors again and again: by their name, or at URLs that stay."""
    if isinstance(selectors, str):
        return lambda: find(selectors)
    return lambda: selectors


def remove(name: str = NAME) -> None:
    """End all selectors of this name, with their processes."""
    for actor_name in members(name):
        with suppress(ValueError):
            ray.kill(ray.get_actor(actor_name, namespace=NAMESPACE), no_restart=True)
