"""Pods as an API server writes documents, reduced to the fields that matter here."""


def a_pod(
    name,
    *,
    ip="10.0.0.1",
    ready=True,
    phase="Running",
    deleted=False,
    ports=(("http", 8000),),
    annotations=None,
    restarts=0,
    uid="u",
    labels=None,
):
    metadata = {"name": name, "namespace": "prod", "uid": uid, "labels": labels or {"app": "vllm"}}
    if annotations:
        metadata["annotations"] = annotations
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    listed = [{"containerPort": port} | ({"name": n} if n else {}) for n, port in ports]
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine", "ports": listed}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "engine", "restartCount": restarts}],
        }
        | ({"podIP": ip} if ip else {}),
    }
