"""EndpointSlices as an API server writes documents, reduced to the fields that matter here."""


def an_endpoint(ip, *, ready=True, pod=None, uid="u", **conditions):
    """Return an endpoint of a slice.

    pod: name of the pod behind the endpoint; None means that the endpoint has no pod
    """
    found = {"addresses": [ip], "conditions": {"ready": ready, **conditions}, "nodeName": "node-1"}
    if pod is not None:
        found["targetRef"] = {"kind": "Pod", "namespace": "prod", "name": pod, "uid": uid}
    return found


def a_slice(name, *endpoints, service="vllm", ports=(("http", 8000),), kind="IPv4", labels=None):
    return {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "labels": {"kubernetes.io/service-name": service, **(labels or {})},
        },
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": n, "port": port, "protocol": "TCP"} for n, port in ports],
    }
