"""Who may call what: the roles that certificates give, and the RPCs that each role may call."""

from enum import StrEnum


class Role(StrEnum):
    """What a process is, as its certificate states: a DNS name among its subject alternative names.

    Not the name of a host: services move between hosts, and what a peer may do depends on its role
    rather than on its address.
    """

    ROUTER = "quire-router"
    SCHEDULER = "quire-scheduler"
    WORKER = "quire-worker"
    CLIENT = "quire-client"
    OPERATOR = "quire-operator"

    @property
    def directory(self) -> str:
        """Name of the directory in which `quire certs` puts its certificate."""
        return self.value.removeprefix("quire-")


ANY_ROLE = frozenset(Role)
_USERS = frozenset({Role.CLIENT, Role.OPERATOR})
_ROUTERS = frozenset({Role.ROUTER})
_SCHEDULERS = frozenset({Role.SCHEDULER})
_WORKERS = frozenset({Role.WORKER})
_OPERATORS = frozenset({Role.OPERATOR})

ALLOWED_ROLES: dict[str, frozenset[Role]] = {
    "/quire.v1.InferenceService/Generate": _USERS,
    "/quire.v1.InferenceService/Chat": _USERS,
    "/quire.v1.InferenceService/Resume": _USERS,
    "/quire.v1.InferenceService/Embed": _USERS,
    "/quire.v1.InferenceService/Abort": _USERS,
    "/quire.v1.InferenceService/Tokenize": _USERS,
    "/quire.v1.InferenceService/Detokenize": _USERS,
    "/quire.v1.InferenceService/ListModels": _USERS,
    "/quire.v1.InferenceService/WatchCluster": _USERS,
    "/inference.GRPCInferenceService/ServerLive": _USERS,
    "/inference.GRPCInferenceService/ServerReady": _USERS,
    "/inference.GRPCInferenceService/ModelReady": _USERS,
    "/inference.GRPCInferenceService/ServerMetadata": _USERS,
    "/inference.GRPCInferenceService/ModelMetadata": _USERS,
    "/inference.GRPCInferenceService/ModelConfig": _USERS,
    "/inference.GRPCInferenceService/ModelStatistics": _USERS,
    "/inference.GRPCInferenceService/ModelInfer": _USERS,
    "/inference.GRPCInferenceService/ModelStreamInfer": _USERS,
    "/vllm.grpc.engine.VllmEngine/Generate": _USERS,
    "/vllm.grpc.engine.VllmEngine/Embed": _USERS,
    "/vllm.grpc.engine.VllmEngine/HealthCheck": _USERS,
    "/vllm.grpc.engine.VllmEngine/Abort": _USERS,
    "/vllm.grpc.engine.VllmEngine/GetModelInfo": _USERS,
    "/vllm.grpc.engine.VllmEngine/GetServerInfo": _USERS,
    "/vllm.grpc.engine.VllmEngine/GetLoads": _USERS,
    "/quire.v1.ClusterService/Resize": _OPERATORS,
    "/quire.v1.ClusterService/Roll": _OPERATORS,
    "/quire.v1.SchedulerService/Session": _ROUTERS,
    "/quire.v1.SchedulerService/AnnounceWorker": _WORKERS,
    "/quire.v1.SchedulerService/Drain": _OPERATORS,
    "/quire.v1.SchedulerService/Resize": _OPERATORS,
    "/quire.v1.WorkerService/Describe": _SCHEDULERS | _OPERATORS,
    "/quire.v1.WorkerService/OpenRendezvous": _SCHEDULERS,
    "/quire.v1.WorkerService/LoadModel": _SCHEDULERS,
    "/quire.v1.WorkerService/ProfileCache": _SCHEDULERS,
    "/quire.v1.WorkerService/InitCache": _SCHEDULERS,
    "/quire.v1.WorkerService/Heartbeat": _SCHEDULERS,
    "/quire.v1.WorkerService/Execute": _SCHEDULERS,
    "/quire.v1.WorkerService/Mirror": _SCHEDULERS,
    "/quire.v1.WorkerService/Reset": _SCHEDULERS,
    "/quire.v1.WorkerService/ImportBlocks": _SCHEDULERS,
    "/quire.v1.WorkerService/FetchBlocks": _WORKERS,
    # Any certificate of the authority: these methods reveal nothing of what is served to whom.
    "/grpc.health.v1.Health/Check": ANY_ROLE,
    "/grpc.health.v1.Health/List": ANY_ROLE,
    "/grpc.health.v1.Health/Watch": ANY_ROLE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": ANY_ROLE,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": ANY_ROLE,
}
"""The roles that may call each RPC; one that is missing here is refused to everybody."""
