"""How a Kubernetes cluster is reached: by the service account of this pod, or by a kubeconfig.

The library, kubernetes-asyncio, is imported when it is asked for.
"""

from pathlib import Path
from typing import Any

import yaml

from select_service.whole_file import open_regular, read_whole

BYTES_MAX = 4 << 20
"""Of one file."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Token, CA and namespace of a pod."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)
"""What files of accounts and kubeconfigs can be wrong with."""


class NoCluster(Exception):
    """What is wrong with the files, in one line."""


async def configuration_of(kubeconfig: Path | None, account: Path = ACCOUNT) -> Any:
    """Of the library.  Raises NoCluster, and ModuleNotFoundError where the library is not there.

    kubeconfig: None: the service account in `account`
    """
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client.configuration import Configuration

    configuration = Configuration()
    try:
        if kubeconfig is not None:
            open_regular(kubeconfig).close()  # the library would wait for who writes to a pipe
            await config.load_kube_config(
                config_file=str(kubeconfig), client_configuration=configuration
            )
        else:
            config.load_incluster_config(
                client_configuration=configuration,
                token_filename=str(account / "token"),
                cert_filename=str(account / "ca.crt"),
            )
    except (config.ConfigException, *UNREADABLE) as error:
        raise NoCluster(one_line(error)) from None
    return configuration


def namespace_of(kubeconfig: Path | None, account: Path = ACCOUNT) -> str:
    """That of the pod, or of the current context.  Reads a file.  Raises NoCluster."""
    try:
        if kubeconfig is None:
            return _text(account / "namespace").strip() or "default"
        document = yaml.safe_load(_text(kubeconfig))
        contexts = {each["name"]: each["context"] for each in document["contexts"]}
        return str(contexts[document["current-context"]].get("namespace") or "default")
    except UNREADABLE as error:
        raise NoCluster(one_line(error)) from None


def _text(path: Path) -> str:
    """Raises OSError, ValueError."""
    return read_whole(path, BYTES_MAX).decode()


def one_line(error: Exception) -> str:
    """What it says, or else what it is."""
    return " ".join(str(error).split()) or type(error).__name__
