"""Objects of Kubernetes, limited to the fields that are read."""

from msgspec import Struct, field


class ObjectMetadata(Struct, rename="camel"):
    """Metadata of any object."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class ScaleSpec(Struct):
    """Desired replicas; 0 if omitted."""

    replicas: int = 0


class ScaleStatus(Struct):
    """Current replicas. selector: label query of the pods"""

    replicas: int = 0
    selector: str = ""


class ScaleObject(Struct):
    """autoscaling/v1 Scale."""

    metadata: ObjectMetadata
    spec: ScaleSpec = field(default_factory=ScaleSpec)
    status: ScaleStatus = field(default_factory=ScaleStatus)


class ContainerResources(Struct):
    """Quantities by resource."""

    limits: dict[str, str | int] = {}


class Container(Struct):
    """Container of a pod or its template."""

    resources: ContainerResources = field(default_factory=ContainerResources)
    command: list[str] = []
    args: list[str] = []


class PodSpec(Struct):
    """Spec of a pod or its template."""

    containers: list[Container] = []


class PodTemplateObject(Struct):
    """Template of pods."""

    spec: PodSpec = field(default_factory=PodSpec)


class LeaderWorkerTemplate(Struct, rename="camel"):
    """Template of a replica of a LeaderWorkerSet."""

    size: int = 1
    worker_template: PodTemplateObject = field(default_factory=PodTemplateObject)
    leader_template: PodTemplateObject | None = None


class Multinode(Struct, rename="camel"):
    """Settings of a component that spans hosts."""

    node_count: int = 1


class GraphComponent(Struct, rename="camel"):
    """Component of a DynamoGraphDeployment, v1beta1."""

    name: str = ""
    type: str = ""
    replicas: int | None = None
    pod_template: PodTemplateObject | None = None
    multinode: Multinode | None = None


class ServicePodSpec(Struct, rename="camel"):
    """Additions of a service to its pods."""

    main_container: Container = field(default_factory=Container)


class ServiceResources(Struct):
    """Quantities of a service: numbers of GPUs and texts, and a mapping of others."""

    limits: dict[str, str | int | dict[str, str]] = {}


class GraphService(Struct, rename="camel"):
    """Component of a DynamoGraphDeployment, v1alpha1."""

    component_type: str = ""
    sub_component_type: str = ""
    replicas: int | None = None
    resources: ServiceResources = field(default_factory=ServiceResources)
    multinode: Multinode | None = None
    extra_pod_spec: ServicePodSpec = field(default_factory=ServicePodSpec)


class WorkloadSpec(Struct, rename="camel"):
    """Spec with the fields of all kinds."""

    replicas: int | None = None
    template: PodTemplateObject | None = None
    leader_worker_template: LeaderWorkerTemplate | None = None
    components: list[GraphComponent] = []
    services: dict[str, GraphService] = {}


class WorkloadCounts(Struct, rename="camel"):
    """Counts of a workload or a component; omitted means 0, or never reported by this kind."""

    replicas: int | None = None
    ready_replicas: int | None = None
    updated_replicas: int | None = None
    served_model_name: str | None = None


class WorkloadStatus(WorkloadCounts, rename="camel"):
    """Status with the fields of all kinds."""

    observed_generation: int | None = None
    components: dict[str, WorkloadCounts] = {}
    services: dict[str, WorkloadCounts] = {}


class WorkloadObject(Struct):
    """Object with replicas."""

    metadata: ObjectMetadata
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)
    status: WorkloadStatus = field(default_factory=WorkloadStatus)


class PodCondition(Struct):
    """Condition of a pod."""

    type: str
    status: str = "Unknown"


class PodStatus(Struct, rename={"pod_ip": "podIP"}):
    """Status of a pod."""

    phase: str = "Unknown"
    pod_ip: str = ""
    conditions: list[PodCondition] = []


class PodObject(Struct):
    """Pod of a workload."""

    metadata: ObjectMetadata
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def is_ready(self) -> bool:
        """Whether the pod serves and is not being deleted."""
        if self.metadata.deletion_timestamp is not None:
            return False
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def has_ended(self) -> bool:
        """Whether the pod has ended, with any result."""
        return self.status.phase in ("Succeeded", "Failed")


class PodList(Struct):
    """A page of pods."""

    items: list[PodObject] = []


class ApiResource(Struct):
    """Resource of a discovery document."""

    name: str
    kind: str


class ApiResources(Struct):
    """Discovery document of a group and version."""

    resources: list[ApiResource] = []


class LeaseSpec(Struct, rename="camel", omit_defaults=True):
    """Spec of a lease, coordination.k8s.io/v1."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(Struct):
    """Lease, coordination.k8s.io/v1."""

    metadata: ObjectMetadata
    spec: LeaseSpec = field(default_factory=LeaseSpec)
