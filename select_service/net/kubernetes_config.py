"""Access to a Kubernetes cluster: by the service account of this pod, or by a kubeconfig.

The library, kubernetes-asyncio, is imported on use.
"""

from pathlib import Path
from typing import Any

import yaml

from select_service.files.atomic_file import open_regular, read_whole

BYTES_MAX = 4 << 20
"""Size limit of a file."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the token, CA and namespace of a pod."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)
"""Exceptions for invalid service account files and kubeconfigs."""


class ClusterUnavailable(Exception):
    """One-line error for unusable files."""


async def load_configuration(kubeconfig: Path | None, account: Path = SERVICE_ACCOUNT_DIR) -> Any:
    """Return a configuration of kubernetes-asyncio.

    kubeconfig: None means the service account in `account`
    Raises ClusterUnavailable, and ModuleNotFoundError without the library.
    """
    # Imported on use: the library is an optional dependency.
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client.configuration import Configuration

    configuration = Configuration()
    try:
        if kubeconfig is not None:
            open_regular(kubeconfig).close()  # the library would block on a pipe
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
        raise ClusterUnavailable(one_line_text(error)) from None
    return configuration


def find_namespace(kubeconfig: Path | None, account: Path = SERVICE_ACCOUNT_DIR) -> str:
    """Return the namespace of the pod, or of the current context.

    Reads a file.  Raises ClusterUnavailable.
    """
    try:
        if kubeconfig is None:
            return _read_text(account / "namespace").strip() or "default"
        document = yaml.safe_load(_read_text(kubeconfig))
        contexts = {each["name"]: each["context"] for each in document["contexts"]}
        return str(contexts[document["current-context"]].get("namespace") or "default")
    except UNREADABLE as error:
        raise ClusterUnavailable(one_line_text(error)) from None


def _read_text(path: Path) -> str:
    """Return the text of a file.  Raises OSError, ValueError."""
    return read_whole(path, BYTES_MAX).decode()


def one_line_text(error: Exception) -> str:
    """Return the message of an error on one line, or its type."""
    return " ".join(str(error).split()) or type(error).__name__
