"""Objects of Kubernetes, as far as they are read here."""

from msgspec import Struct, field


class Metadata(Struct, rename="camel"):
    """Of any object."""

    name: str = ""
    resource_version: str = ""
    generation: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class ScaleSpec(Struct):
    """Left out: 0."""

    replicas: int = 0


class ScaleStatus(Struct):
    """selector: of the pods, as a query."""

    replicas: int = 0
    selector: str = ""


class Scale(Struct):
    """autoscaling/v1 Scale."""

    metadata: Metadata
    spec: ScaleSpec = field(default_factory=ScaleSpec)
    status: ScaleStatus = field(default_factory=ScaleStatus)


class Resources(Struct):
    """Quantities by resource."""

    limits: dict[str, str | int] = {}


class Container(Struct):
    """Of a pod or its template."""

    resources: Resources = field(default_factory=Resources)


class PodSpec(Struct):
    """Of a pod or its template."""

    containers: list[Container] = []


class PodTemplate(Struct):
    """What pods are made from."""

    spec: PodSpec = field(default_factory=PodSpec)


class LeaderWorkerTemplate(Struct, rename="camel"):
    """What one replica of a LeaderWorkerSet is made from."""

    size: int = 1
    worker_template: PodTemplate = field(default_factory=PodTemplate)
    leader_template: PodTemplate | None = None


class Multinode(Struct, rename="camel"):
    """Of a component that is spread over hosts."""

    node_count: int = 1


class Component(Struct, rename="camel"):
    """Of a DynamoGraphDeployment."""

    name: str = ""
    replicas: int | None = None
    pod_template: PodTemplate | None = None
    multinode: Multinode | None = None


class WorkloadSpec(Struct, rename="camel"):
    """Of all kinds together."""

    replicas: int | None = None
    template: PodTemplate | None = None
    leader_worker_template: LeaderWorkerTemplate | None = None
    components: list[Component] = []


class ReplicaCounts(Struct, rename="camel"):
    """Of a workload or a component; left out: 0, or not said at all by this kind."""

    replicas: int | None = None
    ready_replicas: int | None = None
    updated_replicas: int | None = None


class WorkloadStatus(ReplicaCounts, rename="camel"):
    """Of all kinds together."""

    observed_generation: int | None = None
    components: dict[str, ReplicaCounts] = {}


class Workload(Struct):
    """An object with replicas."""

    metadata: Metadata
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)
    status: WorkloadStatus = field(default_factory=WorkloadStatus)


class Condition(Struct):
    """Of a pod."""

    type: str
    status: str = "Unknown"


class PodStatus(Struct, rename={"pod_ip": "podIP"}):
    """Of a pod."""

    phase: str = "Unknown"
    pod_ip: str = ""
    conditions: list[Condition] = []


class Pod(Struct):
    """One pod."""

    metadata: Metadata
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def is_ready(self) -> bool:
        """Does it serve, and is it to stay?"""
        if self.metadata.deletion_timestamp is not None:
            return False
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def is_over(self) -> bool:
        """Has it ended, whatever became of it?"""
        return self.status.phase in ("Succeeded", "Failed")


class PodList(Struct):
    """A page of pods."""

    items: list[Pod] = []


class ApiResource(Struct):
    """Of the discovery document."""

    name: str
    kind: str


class ApiResources(Struct):
    """The discovery document of a group and version."""

    resources: list[ApiResource] = []


class LeaseSpec(Struct, rename="camel", omit_defaults=True):
    """coordination.k8s.io/v1."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Struct):
    """coordination.k8s.io/v1."""

    metadata: Metadata
    spec: LeaseSpec = field(default_factory=LeaseSpec)
