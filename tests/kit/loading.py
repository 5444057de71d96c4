"""One load of the real engine, as Covey starts it, and what it says of its own memory.

One thread, one engine at a time. The argv is the adapter's, so what is measured is what an Instance gets.
"""

import base64
import http.client
import json
import os
import re
import struct
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.ports import EngineProgram, Launch
from covey_api.companion import CompanionRole
from covey_api.instance import EngineOptions, StampedCompanion
from covey_api.model import Geometry
from covey_planner.geometry.gguf import HeaderIncomplete, parse_gguf_geometry

from kit import builders
from kit.measured import MIB, Load
from kit.ports import free_port

READY_SECONDS = 300
PROMPT_SECONDS = 900
# More than one micro batch, so that every page of its buffers is touched.
PROMPT_TOKENS = 600
KEY = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model, and what the engine must be told for it beyond the stamp."""

    name: str
    path: Path
    extra: tuple[str, ...] = ()
    is_encoder: bool = False
    full_slots: bool = True
    """Prompts fill a micro batch in every slot; False: in one."""
    companions: tuple[tuple[CompanionRole, Path], ...] = ()
    """With a projector each prompt is a picture."""

    @property
    def has_projector(self) -> bool:
        return CompanionRole.PROJECTOR in dict(self.companions)


def measure(program: EngineProgram, model: Loadable, options: EngineOptions) -> Load:
    """Load, fill, read the engine's buffers and the peak of its process tree, end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(program, model, options, Path(folder)) as (process, port),
    ):
        at_load = (Path(folder) / "output").read_text()
        tokens = min(PROMPT_TOKENS, options.context_tokens - 16)
        prompts = [threading.Thread(target=prompt, args=(port, model, tokens)) for _ in range(options.slots)]
        for each in prompts if model.full_slots else prompts[:1]:
            each.start()
        for each in prompts if model.full_slots else prompts[:1]:
            each.join(PROMPT_SECONDS)
        peak = peak_bytes(process.pid)
        # After a picture the engine prints the same buffers again.
        text = at_load if model.has_projector else (Path(folder) / "output").read_text()
    return Load(
        model=model.name,
        geometry=read_geometry(model.path),
        options=options,
        weights_bytes=buffers(text, "model"),
        kv_cache_bytes=0 if model.is_encoder else buffers(text, "(?:KV|RS)"),
        compute_bytes=buffers(text, "compute") + buffers(text, "output"),
        peak_bytes=peak,
        companions=tuple((role, read_geometry(path)) for role, path in model.companions),
    )


def read_geometry(model: Path) -> Geometry:
    """Geometry from a prefix that grows as the reader asks."""
    file_bytes, wanted = model.stat().st_size, 65_536
    while True:
        with model.open("rb") as file:
            prefix = file.read(wanted)
        try:
            return parse_gguf_geometry(prefix, file_bytes)
        except HeaderIncomplete as incomplete:
            wanted = incomplete.at_least_bytes


@contextmanager
def running(
    program: EngineProgram, model: Loadable, options: EngineOptions, folder: Path
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """The engine, ready on a port of its own; ended whatever happens. Its words are in `folder`/output."""
    port = free_port()
    launch = render(program, model.path, options, folder, port, model.companions)
    for name, content in launch.files:
        (folder / name).write_text(content)
    output = folder / "output"
    with output.open("wb") as sink:
        argv = [*launch.argv, *model.extra, "-lv", "4"]
        process = subprocess.Popen(argv, stdout=sink, stderr=sink, env=os.environ | launch.environment)
    try:
        wait_ready(process, port, output)
        yield process, port
    finally:
        process.kill()
        process.wait(30)


def render(
    program: EngineProgram,
    weights: Path,
    options: EngineOptions,
    folder: Path,
    port: int,
    companions: Sequence[tuple[CompanionRole, Path]] = (),
) -> Launch:
    """As the agent starts an Instance of these options."""
    adapter = Adapter(LLAMA_SERVER, httpx.AsyncClient(trust_env=False))
    stamped = tuple(StampedCompanion(role=role, artifact=builders.artifact()) for role, _ in companions)
    instance = builders.instance(options=options, companions=stamped)
    return adapter.render(program, instance, weights, folder, port, KEY, tuple(path for _, path in companions))


def wait_ready(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the engine ended with {process.returncode}:\n{output.read_text()[-2000:]}")
        try:
            if call(port, "GET", "/health", None, timeout_seconds=30) == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"the engine was not ready within {READY_SECONDS} s")


def prompt(port: int, model: Loadable, tokens: int) -> None:
    """One prompt of numbered tokens, one token back; or the vector of an encoder, or what a picture brings up."""
    if model.has_projector:
        status = call(port, "POST", "/v1/chat/completions", picture_request(), timeout_seconds=PROMPT_SECONDS)
        assert status == 200, f"the engine must answer to a picture; got status {status}"
        return
    numbers = [1000 + index % 600 for index in range(min(tokens, 510) if model.is_encoder else tokens)]
    path, body = ("/embedding", {"content": numbers}) if model.is_encoder else ("/completion", {"prompt": numbers})
    status = call(port, "POST", path, json.dumps(body | {"n_predict": 1}).encode(), timeout_seconds=PROMPT_SECONDS)
    assert status == 200, f"the engine must answer a prompt of {tokens} tokens; got status {status}"


def picture_request(width: int = 4000, height: int = 3000) -> bytes:
    """A chat about a picture of 12 megapixels, all of one colour."""
    picture = base64.b64encode(png(width, height)).decode()
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()


def png(width: int, height: int) -> bytes:
    row = b"\0" + bytes((200, 120, 40)) * width
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(row * height, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def call(port: int, method: str, path: str, body: bytes | None, timeout_seconds: float) -> int:
    """Status of one request whose answer was read whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        heads = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request(method, path, body, heads)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def buffers(text: str, kind: str) -> int:
    """Bytes of all buffers of a kind, as the engine printed them."""
    sizes = re.findall(rf"{kind} buffer size\s*=\s*([0-9.]+) MiB", text)
    assert sizes, f"the engine must print its {kind} buffer sizes; got:\n{text[-2000:]}"
    return round(sum(map(float, sizes)) * MIB)


def peak_bytes(pid: int) -> int:
    """The most that the process and its children had resident, each at its own peak."""
    tree: list[int] = [pid]
    for each in tree:
        tree += _children(each)
    return sum(_peak(each) for each in tree)


def _children(pid: int) -> Sequence[int]:
    try:
        threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
        texts = [Path(f"/proc/{pid}/task/{thread}/children").read_text() for thread in threads]
    except FileNotFoundError:
        return ()
    return [int(child) for text in texts for child in text.split()]


def _peak(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None, f"the kernel must report VmHWM of process {pid}"
    return int(found[1]) * 1024
