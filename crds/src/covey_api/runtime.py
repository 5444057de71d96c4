"""Options of engines that people may set: an allow-list per engine, by type.

What isn't here can't reach an engine. Nothing here costs memory or context (that is stamped, see `EngineOptions`),
names a file, loads code, or opens a port. Typed fields and not a map of flags: each has its bounds and words, a typo is
told at its field path, and the schema is the list.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from covey_api.engines import EngineName
from covey_api.meta import Message

PARSER_PATTERN = r"^[a-z0-9][a-z0-9_.-]*$"


class Switch(StrEnum):
    ON = "On"
    OFF = "Off"


class Numa(StrEnum):
    DISTRIBUTE = "Distribute"
    """Threads on all NUMA nodes evenly."""
    ISOLATE = "Isolate"
    """Threads on the node where it was started."""
    NUMACTL = "Numactl"
    """As `numactl` around the agent says."""


class ReasoningFormat(StrEnum):
    AUTO = "Auto"
    """As the model's template says."""
    NONE = "None"
    """Thoughts stay in the text."""
    DEEPSEEK = "Deepseek"
    """Thoughts go into `reasoning_content`."""


class LlamaServerRuntime(Message):
    """Options of `LlamaServer`."""

    numa: Numa | None = None
    """`--numa`: where threads run on machines with several memory nodes."""
    mlock: Switch | None = None
    """`--mlock`: keep the weights from being swapped out."""
    poll_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """`--poll`: how much threads spin while they wait; 0 saves power, 100 saves time."""
    cache_reuse_tokens: Annotated[int, Field(ge=0, le=65_536)] | None = None
    """`--cache-reuse`: the shortest piece of an earlier prompt that is moved instead of read anew."""
    reasoning_format: ReasoningFormat | None = None
    """`--reasoning-format`: where thoughts go."""


class LlamaCppRuntime(Message):
    """Options of `LlamaCpp`."""

    mlock: Switch | None = None
    """Keep the weights from being swapped out."""


class MlxRuntime(Message):
    """Options of `Mlx`."""

    default_chat_template: Switch | None = None
    """`--use-default-chat-template`: where the model has no template of its own."""


class VllmRuntime(Message):
    """Options of `Vllm`."""

    enforce_eager: Switch | None = None
    """`--enforce-eager`: start faster and run slower, without compiled graphs."""
    tool_call_parser: Annotated[str, Field(pattern=PARSER_PATTERN, max_length=64)] | None = None
    """`--enable-auto-tool-choice --tool-call-parser`: how tool calls are read from the text."""
    reasoning_parser: Annotated[str, Field(pattern=PARSER_PATTERN, max_length=64)] | None = None
    """`--reasoning-parser`: how thoughts are read from the text."""


class Runtime(Message):
    """Options of engines, each under its own name; those of other engines than the one that runs are not used."""

    llama_server: LlamaServerRuntime = LlamaServerRuntime()
    llama_cpp: LlamaCppRuntime = LlamaCppRuntime()
    mlx: MlxRuntime = MlxRuntime()
    vllm: VllmRuntime = VllmRuntime()

    def options_of(self, engine: EngineName) -> dict[str, Any]:
        """What is set for one engine, as it is written."""
        by_engine: dict[EngineName, Message] = {
            EngineName.LLAMA_SERVER: self.llama_server,
            EngineName.LLAMA_CPP: self.llama_cpp,
            EngineName.MLX: self.mlx,
            EngineName.VLLM: self.vllm,
        }
        return by_engine[engine].to_wire()
