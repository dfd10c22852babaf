"""A selector and its replica plane, in this process, over real sockets."""

from indexer.sockets.names import Names
from select_service.access.keys_file import replica_keys_in
from select_service.access.plane_keys import PlaneKeys
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.replicas.sync import ReplicaSync
from select_service.edge.supervised import Callbacks
from tests.builders import a_selector, a_worker
from tests.process.launched import free_port


class Plane:
    """On loopback.  repair: off unless asked for"""

    def __init__(
        self, seed, names=None, *, keys=None, repair=False, port=None, url=None, lax=False
    ):
        self.callbacks = Callbacks()
        self.publisher = ReplicaPublisher(self.callbacks)
        mark = None if keys is None else keys.router_mark
        self.selector = a_selector(seed=seed, router_mark=mark)
        self.selector.replicas.tell(self.publisher.offer)
        self.selector.register(a_worker(1))
        self.sync = ReplicaSync(
            self.selector.replicas,
            self.publisher,
            self.callbacks,
            names or Names(),
            repair=repair,
            url=url,
            keys=keys,
            believes_urls=lax,
        )
        port = free_port() if port is None else port
        self.sync.bind(port)
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def peer(self):
        (peer,) = self.sync.status().peers
        return peer


def keys_text(*replicas):
    """A file of public keys.  replicas: (name, pair, other fields)"""
    lines = []
    for name, pair, fields in replicas:
        lines += ["[[replicas]]", f'name = "{name}"', f'public_key = "{pair.public.decode()}"']
        lines += [f'{field} = "{text}"' for field, text in fields.items()]
    return "\n".join(lines) or "replicas = []"


def plane_keys(own, path):
    """What a process is given that has `own` as its pair."""
    return PlaneKeys(own, path, replica_keys_in(path, path.read_bytes()))
