"""Whether a build of an engine has code for one kind of model: looked up in the build itself, and never guessed.

A list of ours would be wrong with the next version, and no engine tells its own. What is refused here is known:

- llama.cpp compares the header's name with names that its library holds as texts. Where the library has the message
  about unknown ones and a name that every version knows, a name that isn't in it is not known to it.
- mlx-lm imports the module that is called as the model's type, or as a table of it says: where neither is there, the
  import fails.

Everything else (vLLM, a Python that the operator gave, a library somewhere else) is not known, and is tried.
"""

import mmap
import re
from pathlib import Path

from covey_api.engines import EngineName

from covey_agent.ports import EngineProgram

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LIBRARIES = ("libllama.so", "libllama.dylib")
# Of a file that has the table: what it says of a name that isn't in it, and the name that has always been.
_SIGNS = (b"unknown model architecture", b"llama\0")
# Of the file in which mlx-lm's table of other names is.
_MAX_TABLE_BYTES = 4 * 1024 * 1024


def find_code(engine: EngineName, program: EngineProgram) -> Path | None:
    """The file or folder that the engine looks in."""
    match engine:
        case EngineName.LLAMA_SERVER:
            beside = program.path.resolve().parent
            places = [folder / name for folder in (beside, beside.parent / "lib") for name in _LIBRARIES]
            return next((each for each in places if each.is_file()), program.path)
        case EngineName.LLAMA_CPP:
            places = [program.packages / "llama_cpp/lib" / name for name in _LIBRARIES] if program.packages else []
            return next((each for each in places if each.is_file()), None)
        case EngineName.MLX:
            return program.packages / "mlx_lm/models" if program.packages else None
        case EngineName.VLLM:
            return None


def is_lacking(code: Path, architecture: str) -> bool:
    """Whether it is known that there is no code for it. Reads some megabytes; never raises."""
    if not _NAME.fullmatch(architecture):
        return False
    try:
        return _lacks_module(code, architecture) if code.is_dir() else _lacks_text(code, architecture)
    except (OSError, ValueError):
        return False


def _lacks_text(library: Path, architecture: str) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if any(content.find(sign) < 0 for sign in _SIGNS):
            return False
        # Texts that end alike are kept once, so nothing is asked of what comes before it.
        return content.find(architecture.encode() + b"\0") < 0


def _lacks_module(models: Path, architecture: str) -> bool:
    if not (models / "llama.py").is_file() or (models / architecture).exists():
        return False
    if (models / f"{architecture}.py").exists():
        return False
    with (models.parent / "utils.py").open("rb") as file:
        table = file.read(_MAX_TABLE_BYTES)
    return f'"{architecture}"'.encode() not in table and f"'{architecture}'".encode() not in table
