"""Names of engines, computes, formats and tasks, shared by every kind."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from covey_api.meta import Message
from covey_api.reasons import ReportedEngineCause


class EngineName(StrEnum):
    LLAMA_SERVER = "LlamaServer"
    """llama.cpp's own server."""
    LLAMA_CPP = "LlamaCpp"
    """llama-cpp-python under a server of ours."""
    MLX = "Mlx"
    """mlx-lm's server under a launcher of ours."""
    VLLM = "Vllm"
    """`vllm serve`."""


HOST_POOL = "Host"
"""The pool of a machine's own memory; a device's pool has the engine's name of the device."""


class Compute(StrEnum):
    CPU = "Cpu"
    CUDA = "Cuda"
    ROCM = "Rocm"
    VULKAN = "Vulkan"
    METAL = "Metal"


class ArtifactFormat(StrEnum):
    GGUF = "Gguf"
    """One file of llama.cpp."""
    SAFETENSORS = "Safetensors"
    """A folder: `config.json`, safetensors and a tokenizer."""
    MLX = "Mlx"
    """The same as mlx-lm converts and quantises it."""


FORMATS: Mapping[EngineName, frozenset[ArtifactFormat]] = {
    EngineName.LLAMA_SERVER: frozenset({ArtifactFormat.GGUF}),
    EngineName.LLAMA_CPP: frozenset({ArtifactFormat.GGUF}),
    EngineName.MLX: frozenset({ArtifactFormat.MLX, ArtifactFormat.SAFETENSORS}),
    EngineName.VLLM: frozenset({ArtifactFormat.SAFETENSORS}),
}
"""What each engine loads."""


class Task(StrEnum):
    CHAT = "Chat"
    EMBEDDING = "Embedding"
    """Texts in, vectors out."""
    RERANK = "Rerank"
    """A query and documents in, a score for each out."""
    VISION = "Vision"
    """Images in chats. It comes after `Chat`, by which the engine is started."""


class KvCacheType(StrEnum):
    F16 = "F16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"


TASKS: Mapping[EngineName, frozenset[Task]] = {
    EngineName.LLAMA_SERVER: frozenset(Task),
    EngineName.LLAMA_CPP: frozenset({Task.CHAT}),
    EngineName.MLX: frozenset({Task.CHAT}),
    EngineName.VLLM: frozenset({Task.CHAT, Task.EMBEDDING, Task.RERANK}),
}
"""What each engine can be started for."""

KV_CACHE_TYPES: Mapping[EngineName, frozenset[KvCacheType]] = {
    EngineName.LLAMA_SERVER: frozenset(KvCacheType),
    EngineName.LLAMA_CPP: frozenset(KvCacheType),
    EngineName.MLX: frozenset(KvCacheType),
    EngineName.VLLM: frozenset({KvCacheType.F16, KvCacheType.Q8_0}),
}
"""How each engine can keep keys and values."""


class KvLayout(StrEnum):
    PER_SLOT = "PerSlot"
    """Each slot has its own window: one conversation can't end another."""
    UNIFIED = "Unified"
    """All slots share one window: whoever admits requests must see that they fit together."""


class LaneState(StrEnum):
    INSTALLED = "Installed"
    """The engine is on the node and answered a probe."""
    INSTALLABLE = "Installable"
    """The agent can provision it when a member needs it."""


EngineVersion = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$", max_length=64)]
"""As an agent offers it in `status.lanes[].versions` of its Node."""

MAX_LACKS = 32

Architectures = Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_LACKS)]
Flags = Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_LACKS)]
LaneRoles = Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=8)]


class LaneBuild(Message):
    """A version of a lane's engine that a pin may name, where it isn't the lane's own."""

    version: EngineVersion
    """One of the lane's `versions`."""
    state: LaneState
    """`Installed`, or `Installable` when a member needs it."""
    digest: Annotated[str, Field(max_length=64)] = ""
    """As of the lane."""
    lacks: Architectures = ()
    """Architectures that were asked of it and that it has no code for, sorted."""
    lacks_features: Flags = ()
    """Flags that its own help doesn't name, sorted, of those that some Instances need."""
    roles: LaneRoles = ()
    """What it can be of an Instance of several members."""


class Lane(Message):
    """Engine and compute, as one node offers it."""

    engine: EngineName
    """The program that runs weights."""
    compute: Compute
    """What it runs on."""
    state: LaneState
    """`Installed`, or `Installable` when a member needs it."""
    version: Annotated[str, Field(max_length=128)] = ""
    """Version of the engine."""
    digest: Annotated[str, Field(max_length=64)] = ""
    """sha256 of the wheel it comes from, or of the list of its wheels; empty for a program that the operator gave."""
    pool: Annotated[str, Field(max_length=63)] = HOST_POOL
    """The memory pool that this lane's engine fills."""
    versions: Annotated[tuple[EngineVersion, ...], Field(max_length=16)] = ()
    """Those that the agent can install for it, and a pin may name; empty for a program that the operator gave."""
    limit_bytes: Annotated[int, Field(ge=0)] = 0
    """The most that all engines on this compute can fill of that pool, where it is the host's and the device's driver
    allows it a part alone (AMD's GTT); 0: all of it."""
    lacks: Architectures = ()
    """Architectures that were asked of it and that this build has no code for, sorted. Others may be there or not."""
    lacks_features: Flags = ()
    """Flags that this build's own help doesn't name, sorted, of those that some Instances need and not all. Empty also
    where its help is not known."""
    builds: Annotated[tuple[LaneBuild, ...], Field(max_length=16)] = ()
    """The other `versions`, each with what is known of it; what the lane says of itself is of its own version."""
    companions: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=16)] = ()
    """What the agent starts this engine with beside the weights: `Projector`, `Draft`. Versions that know of none say
    nothing, and get no Instance that has any."""
    roles: LaneRoles = ()
    """What it can be of an Instance of several members: `Driver`, `Donor`, `Rank`. Versions that know of none say
    nothing."""


class UnusableEngine(Message):
    """An engine that people count on at a node, and that can't be started there."""

    engine: EngineName
    """The program that would run weights."""
    cause: ReportedEngineCause
    """What kind of problem it is."""
    message: Annotated[str, Field(max_length=1024)]
    """What was found, and what to do."""
