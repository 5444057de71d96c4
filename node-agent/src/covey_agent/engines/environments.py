"""Engine environments: files pinned by digest, installed by uv into `envs/<digest>`, never into the agent's own.

A recipe is in the code and not asked of an index: what runs is what was tested. Its files are artifacts like weights,
so a node without an index builds the same environment from what it holds. The folder holds a flat installation and no
virtual environment: a program is run as it is, and an engine in Python by the agent's interpreter with that folder
alone on its path, so no link to an interpreter can go stale. `complete` is written last; a folder without it is half
made and is built again.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import uv
from covey_api.reasons import FailureCause

from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import hold_partial, run_to_end, sync_folder, write_atomically
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.flight import Flights
from covey_agent.artifacts.pages import find_file
from covey_agent.artifacts.together import Sum, do_together
from covey_agent.artifacts.verifying import find_verified
from covey_agent.artifacts.web import Web
from covey_agent.engines.probe import ask
from covey_agent.ports import AgentError, OnTransfer, Transfer

# uv unpacks 200 MB in under a second; a slow disk under load has taken half a minute.
_INSTALL_SECONDS = 300.0
# Index pages and small files at a time: the latency of one hides behind the others.
_MAX_DOWNLOADS = 4


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of an index: a wheel, or the source of one."""

    project: str
    version: str
    filename: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one environment is made of, on this machine."""

    name: str
    """The engine, for words."""
    version: str
    files: tuple[PinnedFile, ...]
    installed_bytes: int
    program: str
    """A file in it that must be there afterwards."""
    cure: str
    """What a person can do where it can't be installed."""
    tools: tuple[PinnedFile, ...] = ()
    """What builds those files that are sources."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the build."""
    python: str = ""
    """The tag of the Python that it is for; empty where only programs in it are run."""
    install_seconds: float = _INSTALL_SECONDS

    @property
    def digest(self) -> str:
        """What identifies the environment: of a single wheel its own digest, else that of all that it is made from."""
        if len(self.files) == 1 and not self.python:
            return self.files[0].sha256
        parts = [self.python, *(file.sha256 for file in (*self.files, *self.tools))]
        parts += [f"{name}={value}" for name, value in sorted(self.settings.items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Provenances(Protocol):
    """Who looks at what publishers say of their files."""

    async def check(self, file: PinnedFile, url: str) -> None:
        """AgentError where what is at `url` doesn't say that this file is its publisher's."""
        ...


class Environment:
    """One recipe in this cache. `provenances`: None where the pinned digests are all that is looked at."""

    def __init__(
        self, recipe: Recipe, web: Web, cache: Cache, downloader: Downloader, provenances: Provenances | None = None
    ) -> None:
        self.recipe = recipe
        self._web = web
        self._cache = cache
        self._downloader = downloader
        self._provenances = provenances
        self._flights = Flights()
        self._folder = cache.envs / recipe.digest

    def find(self) -> Path | None:
        """Its packages, if it is complete."""
        packages = self._folder / "packages"
        is_there = (self._folder / "complete").is_file() and (packages / self.recipe.program).is_file()
        return packages if is_there else None

    async def ensure(self, on_transfer: OnTransfer) -> Path:
        return await self._flights.run(self.recipe.digest, on_transfer, self._ensure)

    async def _ensure(self, tell: OnTransfer) -> Path:
        if packages := self.find():
            return packages
        recipe = self.recipe
        with self._cache.room.hold(file.sha256 for file in (*recipe.files, *recipe.tools)):
            return await self._make(tell)

    async def _make(self, tell: OnTransfer) -> Path:
        recipe = self.recipe
        blobs = await self._fetch(tell)
        lock = self._folder.with_suffix(".lock")
        async with hold_partial(lock, recipe.install_seconds) as held:
            # Another process may have built it while this one waited.
            if self.find() is None:
                await self._cache.room.require(recipe.installed_bytes, f"the environment of {recipe.name}")
                try:
                    await self._build(blobs, held)
                except OSError as error:
                    raise self._cache.room.explain(error, recipe.name, recipe.installed_bytes) from error
        packages = self.find()
        if packages is None:
            raise self._failed(f"there is no '{recipe.program}' in it")
        return packages

    async def _fetch(self, tell: OnTransfer) -> dict[PinnedFile, Path]:
        """All files as blobs of the cache, a few at a time; what is there needs no index."""
        wanted = (*self.recipe.files, *self.recipe.tools)
        progress = Sum(sum(file.size_bytes for file in wanted), tell)

        async def fetch(file: PinnedFile) -> Path:
            path = await self._fetch_file(file, progress.part(file.sha256))
            progress.part(file.sha256)(Transfer(file.size_bytes, file.size_bytes, 0))
            return path

        return dict(zip(wanted, await do_together(fetch, wanted, _MAX_DOWNLOADS), strict=True))

    async def _fetch_file(self, file: PinnedFile, tell: OnTransfer) -> Path:
        if blob := await find_verified(self._cache, file.sha256, file.size_bytes):
            return blob
        # Where the index can't be reached another node may have it: the recipe says all that is needed to ask.
        taken = await self._downloader.take(file.filename, file.sha256, file.size_bytes, tell, keeps_partial=True)
        if taken is not None:
            return taken
        found = await find_file(self._web, file.project, file.filename, file.sha256)
        if self._provenances is not None and found.provenance:
            await self._provenances.check(file, found.provenance)
        remote = Remote(found.url, file.filename, file.sha256, file.size_bytes)
        return await self._downloader.download(remote, tell, beside_bytes=self.recipe.installed_bytes)

    async def _build(self, blobs: Mapping[PinnedFile, Path], lock: int) -> None:
        """`lock` is held by what installs as well: it outlives an agent that is killed, and nobody builds under it.
        Threads end before it is let go: one that ran on would mark what the next one has half made as complete."""
        staging = self._folder / "staging"
        await run_to_end(self._stage, blobs, staging)
        seconds = self.recipe.install_seconds
        answer = await ask(
            Path(uv.find_uv_bin()),
            *("pip", "install", "--quiet", "--no-config", "--no-python-downloads", "--python", sys.executable),
            *("--offline", "--no-index", "--find-links", str(staging), "--no-deps", "--require-hashes"),
            *("--build-constraints", str(staging / "tools.txt")),
            *("--cache-dir", str(staging / "cache"), "--target", str(self._folder / "packages")),
            *("--requirements", str(staging / "requirements.txt")),
            environment={"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)} | dict(self.recipe.settings),
            seconds=seconds,
            locks=(lock,),
        )
        if answer is None:
            raise self._failed(f"uv did not end within {seconds:.0f} s")
        if answer.status != 0:
            raise self._failed(f"uv ended with {answer.status}: {' '.join(answer.text.split())[-400:]}")
        await run_to_end(self._complete, staging)

    def _stage(self, blobs: Mapping[PinnedFile, Path], staging: Path) -> None:
        """An empty folder with the files under their own names, and what uv shall install. Blocking."""
        shutil.rmtree(self._folder, ignore_errors=True)
        staging.mkdir(parents=True)
        for file, blob in blobs.items():
            named = staging / file.filename
            try:
                named.hardlink_to(blob)
            except OSError:
                # A file system without hard links.
                shutil.copyfile(blob, named)
        for name, files in (("requirements.txt", self.recipe.files), ("tools.txt", self.recipe.tools)):
            lines = [f"{file.project}=={file.version} --hash=sha256:{file.sha256}\n" for file in files]
            (staging / name).write_text("".join(lines), encoding="utf-8")

    def _complete(self, staging: Path) -> None:
        """Everything on the disk, then the mark. Blocking."""
        shutil.rmtree(staging)
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with (Path(folder) / name).open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(Path(folder))
        made_of = "".join(f"{file.filename}\n" for file in self.recipe.files)
        write_atomically(self._folder / "complete", made_of.encode())

    def _failed(self, words: str) -> AgentError:
        return AgentError(
            FailureCause.NO_USABLE_ENGINE,
            f"engine '{self.recipe.name}' {self.recipe.version} can't be installed into {self._folder}: {words}. "
            f"{self.recipe.cure}",
        )
