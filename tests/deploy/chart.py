"""The chart, values for it, and what Helm has made of them."""

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
    """Of everything that decides what Helm makes of these values, in the first line of that."""
    digest = hashlib.sha256()
    for path in [*sorted(each for each in CHART.rglob("*") if each.is_file()), VALUES[name]]:
        is_data = path.parent.name == "files"  # is not in what is kept
        digest.update(f"{path.name}\0".encode() + (b"" if is_data else path.read_bytes()))
    return f"# {digest.hexdigest()}"


def documents(name: str) -> list[Document]:
    """Of the file that is kept, without rules and dashboard."""
    return list(yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()))


def of_kind(name: str, *kinds: str) -> Iterator[Document]:
    return (each for each in documents(name) if each["kind"] in kinds)


def one(name: str, kind: str, ending: str = "") -> Document:
    """The only document of this kind whose name ends so."""
    (found,) = (d for d in of_kind(name, kind) if d["metadata"]["name"].endswith(ending))
    return found


def container(name: str, kind: str = "StatefulSet") -> Document:
    """The only container of the pods of a StatefulSet or Deployment."""
    (found,) = one(name, kind)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def arguments(name: str, pod: str = "select-service-0") -> list[str]:
    """Of the service in a pod, as the kubelet gives them."""
    return [word.replace("$(POD_NAME)", pod) for word in container(name)["args"]]


def variables(name: str) -> dict[str, str]:
    """Of the service in a pod, as far as the chart gives them."""
    return {v["name"]: v["value"] for v in container(name)["env"] if "value" in v}
