"""The chart, values of the chart, and the kept output of Helm."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "scripts" / "deploy" / "helm"
RENDERED = HERE / "rendered"
VALUES = {path.stem: path for path in sorted((HERE / "values").glob("*.yaml"))}
RELEASE, NAMESPACE = "select-service", "inference"
Document = dict[str, Any]


def values_of(name: str) -> Document:
    found = yaml.safe_load(VALUES[name].read_text())
    assert isinstance(found, dict)
    return found


def fingerprint(name: str) -> str:
    """Return the digest of everything that affects Helm's output, for the first line of a file."""
    digest = hashlib.sha256()
    for path in [*sorted(each for each in CHART.rglob("*") if each.is_file()), VALUES[name]]:
        is_data = path.parent.name == "files"  # the kept files leave out the data
        digest.update(f"{path.name}\0".encode() + (b"" if is_data else path.read_bytes()))
    return f"# {digest.hexdigest()}"


def documents(name: str) -> list[Document]:
    """Return the documents of the kept file, without rules and dashboard."""
    return list(yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()))


def of_kind(name: str, *kinds: str) -> Iterator[Document]:
    return (each for each in documents(name) if each["kind"] in kinds)


def one(name: str, kind: str, ending: str = "") -> Document:
    """Return the only document of this kind with a name that ends like this."""
    (found,) = (d for d in of_kind(name, kind) if d["metadata"]["name"].endswith(ending))
    return found


def container(name: str, kind: str = "StatefulSet") -> Document:
    """Return the only container of the pods of a StatefulSet or Deployment."""
    (found,) = one(name, kind)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def arguments(name: str, pod: str = "select-service-0") -> list[str]:
    """Return the arguments of the service in a pod, as the kubelet passes these."""
    return [word.replace("$(POD_NAME)", pod) for word in container(name)["args"]]


def variables(name: str) -> dict[str, str]:
    """Return the environment of the service in a pod, as far as the chart sets variables."""
    return {v["name"]: v["value"] for v in container(name)["env"] if "value" in v}
