"""All engines that this version can run."""

from covey_agent.engines.llama_cpp import LLAMA_CPP
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.engines.mlx import MLX
from covey_agent.engines.vllm import VLLM

DESCRIPTIONS = (LLAMA_SERVER, LLAMA_CPP, MLX, VLLM)
