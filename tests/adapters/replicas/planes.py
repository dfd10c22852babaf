"""A selector and its replica plane, in this process, over real sockets."""

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.replica_sync import ReplicaSync, ReplicaSyncConfig
from select_service.auth.keys_file import parse_replica_keys_file
from select_service.auth.replica_keypair import ReplicaKeypair
from tests.builders import a_selector, a_worker
from tests.builders.launched_process import free_port


class Plane:
    """Replica plane on loopback.

    repair: whether repairs run
    """

    def __init__(
        self, seed, names=None, *, keys=None, repair=False, port=None, url=None, lax=False
    ):
        self.callbacks = GuardedCallbacks()
        self.publisher = ReplicaPublisher(self.callbacks)
        mark = None if keys is None else keys.router_mark
        self.selector = a_selector(seed=seed, router_mark=mark)
        self.selector.followers.replicas.start_sending(self.publisher.offer_event)
        self.selector.register_worker(a_worker(1))
        self.sync = ReplicaSync(
            self.selector.followers.replicas,
            self.publisher,
            self.callbacks,
            names or Resolver(),
            ReplicaSyncConfig(repair=repair, url=url, keys=keys, trusts_urls=lax),
            self.selector.followers.sessions,
        )
        port = free_port() if port is None else port
        self.sync.bind_publisher(port)
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def peer(self):
        (peer,) = self.sync.replica_status().peers
        return peer


def keys_text(*replicas):
    """Return a file of public keys.

    replicas: list of (name, pair, other fields)
    """
    lines = []
    for name, pair, fields in replicas:
        lines += ["[[replicas]]", f'name = "{name}"', f'public_key = "{pair.public.decode()}"']
        lines += [f'{field} = "{text}"' for field, text in fields.items()]
    return "\n".join(lines) or "replicas = []"


def plane_keys(own, path):
    """Return the key settings of a process with `own` as its pair."""
    return ReplicaKeypair(own, path, parse_replica_keys_file(path, path.read_bytes()))
