"""`oci://` sources: models that a registry of containers keeps, as ORAS, Docker, Ollama and the model specification put
them there.

A manifest has the sha256 of each file, so a registry is read as a hub is whose files are all large: by the same code. A
tag is resolved to a manifest's digest by whoever reads the header, and only that manifest is fetched from then on.
"""

import asyncio
import base64
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from covey_api.model import ArtifactFile, ResolvedArtifact
from covey_api.source import HubSource, OciSource

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.header import Header
from covey_agent.artifacts.hub import Repository
from covey_agent.artifacts.hub_files import HubFiles
from covey_agent.artifacts.index import Login, split_login
from covey_agent.artifacts.manifest import (
    ACCEPT,
    find_helper,
    find_login,
    host_of,
    parse_challenge,
    parse_manifest,
    parse_token,
)
from covey_agent.artifacts.together import AT_ONCE, Sum, do_together
from covey_agent.artifacts.verifying import find_verified
from covey_agent.artifacts.web import Origin, Unauthorized, Web, corrupt, is_loopback, persist, unavailable
from covey_agent.ports import OnTransfer, Transfer

logger = logging.getLogger(__name__)

# As large as registries take them.
_MAX_MANIFEST_BYTES = 4 * 1024 * 1024
_MAX_TOKEN_BYTES = 256 * 1024
_DOCKER_HOST = host_of("docker.io")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """One repository of a registry, and who asks."""

    endpoint: str
    origin: Origin
    found: Repository


class RegistryFiles:
    """Registries, each asked when a source names it."""

    def __init__(self, web: Web, cache: Cache, downloader: Downloader) -> None:
        self._web = web
        self._cache = cache
        self._downloader = downloader

    async def read_header(self, source: str, parsed: OciSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        files = await self._open(parsed, parsed.reference)
        return await files.read_header(source, _as_repository(parsed), sha256)

    async def fetch(self, artifact: ResolvedArtifact, parsed: OciSource, tell: OnTransfer) -> dict[str, Path]:
        """The blob of each file, by the file's name. The registry is asked for those alone that nobody nearer has."""
        if artifact.sha256 is None or artifact.revision is None:
            raise corrupt(f"'{artifact.source}' was never resolved to a manifest; its header must be read again.")
        reference = f"sha256:{artifact.revision}"
        one = ArtifactFile(name=artifact.name, size_bytes=artifact.size_bytes, sha256=artifact.sha256)
        files = artifact.files or (one,)
        progress = Sum(sum(file.size_bytes for file in files), tell)
        opening = asyncio.Lock()
        opened: list[_ManifestFiles] = []

        async def open_once(refused: _ManifestFiles | None = None) -> _ManifestFiles:
            async with opening:
                if opened == [refused]:
                    opened.clear()
                if not opened:
                    opened.append(await self._open(parsed, reference))
                return opened[0]

        async def fetch_from_registry(file: ArtifactFile, told: OnTransfer) -> Path:
            part, manifest = artifact.model_copy(update={"files": (file,)}), await open_once()
            came_bytes = before_bytes = 0
            is_fresh = False

            def observe(transfer: Transfer) -> None:
                nonlocal came_bytes
                came_bytes = max(came_bytes, transfer.done_bytes)
                told(transfer)

            while True:
                try:
                    return (await manifest.fetch(part, _as_repository(parsed), observe, is_elsewhere=False))[file.name]
                except Unauthorized:
                    # Its token ran out while this file or others came: as often as that happens, but for one that was
                    # made for this file and brought nothing of it.
                    if is_fresh and came_bytes <= before_bytes:
                        raise
                    is_fresh, before_bytes = opened == [manifest], came_bytes
                    manifest = await open_once(manifest)

        async def fetch(file: ArtifactFile) -> Path:
            told = progress.part(file.name)
            path = await find_verified(self._cache, file.sha256, file.size_bytes)
            if path is None:
                path = await self._downloader.take(file.name, file.sha256, file.size_bytes, told, keeps_partial=True)
            if path is None:
                path = await fetch_from_registry(file, told)
            told(Transfer(file.size_bytes, file.size_bytes, 0))
            return path

        names = [file.name for file in files]
        return dict(zip(names, await do_together(fetch, files, AT_ONCE), strict=True))

    async def _open(self, parsed: OciSource, reference: str) -> "_ManifestFiles":
        """The files of a manifest, which is read by whoever it takes."""
        host = host_of(parsed.registry)
        # As Docker has it: this machine's own registry may speak plainly.
        endpoint = f"{'http' if is_loopback(urlsplit(f'//{host}').hostname or '') else 'https'}://{host}"
        origin = _origin_of(parsed.registry)
        url = f"{endpoint}/v2/{parsed.repository}/manifests/{quote(reference, safe=':')}"
        try:
            body = await self._read_manifest(url, origin)
        except Unauthorized as refused:
            origin = await self._log_in(parsed, refused, origin)
            body = await self._read_manifest(url, origin)
        try:
            found = parse_manifest(body, reference)
        except ValueError as error:
            raise unavailable(f"{url} gives no manifest of a model: {error}. {origin.check}") from error
        return _ManifestFiles(self._web, self._cache, self._downloader, RegistrySettings(endpoint, origin, found))

    async def _read_manifest(self, url: str, origin: Origin) -> bytes:
        what = f"manifest {url}"
        _, body = await persist(
            self._web.patience, what, lambda: self._web.read(url, {"Accept": ACCEPT}, _MAX_MANIFEST_BYTES, origin)
        )
        return body

    async def _log_in(self, parsed: OciSource, refused: Unauthorized, origin: Origin) -> Origin:
        """The origin with what the registry asks for; what it was refused with if there is nothing to give."""
        scheme, asked = parse_challenge(refused.challenge)
        host = urlsplit(f"//{host_of(parsed.registry)}").hostname or ""
        login = find_login(os.environ, Path.home(), parsed.registry, parsed.repository)
        login = login or self._web.find_netrc_login(host)
        if scheme == "basic" and login is not None:
            return replace(origin, token=_render(login), scheme="Basic")
        if scheme != "bearer" or not asked.get("realm"):
            raise refused
        realm = read_realm(asked["realm"], origin, host)
        if login is not None and not _is_kin(host_of(parsed.registry), realm):
            logger.warning("the login for '%s' is not shown to '%s', which it names", parsed.registry, realm)
            login = None
        query = {"scope": asked.get("scope") or f"repository:{parsed.repository}:pull"}
        query |= {"service": asked["service"]} if asked.get("service") else {}
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        who = replace(origin, token=_render(login) if login else "", scheme="Basic")
        _, body = await persist(
            self._web.patience, f"token of '{parsed.registry}'", lambda: self._web.read(url, {}, _MAX_TOKEN_BYTES, who)
        )
        if token := parse_token(body):
            return replace(origin, token=token)
        raise refused


class _ManifestFiles(HubFiles):
    """Of one manifest."""

    def __init__(self, web: Web, cache: Cache, downloader: Downloader, settings: RegistrySettings) -> None:
        super().__init__(web, cache, downloader, settings)
        self._registry = settings

    async def _resolve(self, parsed: HubSource) -> Repository:
        return self._registry.found

    def _url(self, repository: str, commit: str, path: str, sha256: str) -> str:
        return f"{self._registry.endpoint}/v2/{repository}/blobs/sha256:{sha256}"


def _as_repository(parsed: OciSource) -> HubSource:
    return HubSource(parsed.repository, parsed.reference, parsed.file)


def _origin_of(registry: str) -> Origin:
    return Origin(
        says="as the registry says",
        check=f"Check the registry '{registry}'.",
        login=_login_words(registry),
        missing="there is no such repository, tag or file. Change the source.",
        # A registry is asked without a login first, says what it wants, and gets that alone: what an entry of ~/.netrc
        # is for may be another service of its host. It also gets the token that comes of a login: a token service's
        # own entry there would make one for a stranger.
        is_anonymous=True,
    )


def _login_words(registry: str) -> str:
    """Who did log in, and whose login is where it isn't looked for, is told so."""
    if helper := find_helper(os.environ, Path.home(), registry):
        words = f"Docker's logins are kept by `{helper}` there, which the agent doesn't ask: "
        return f"{words}give its user one by `podman login {registry}`, or in ~/.netrc."
    return f"Give the agent's user a login by `docker login {registry}` or `oras login {registry}`."


def read_realm(text: str, origin: Origin, registry: str) -> str:
    """Where a token is asked for, without a login; only where nobody between can read it.

    On this machine only for a registry that is here as well: any other could have whatever listens here asked, and is
    shown what it answers.
    """
    try:
        realm, _ = split_login(text)
        parts = urlsplit(realm)
        is_here = is_loopback(parts.hostname or "")
        is_private = is_loopback(registry) if is_here else parts.scheme == "https"
        is_private = is_private and parts.scheme in ("http", "https")
        _ = parts.port  # ValueError where it is none
    except ValueError as error:
        raise unavailable(
            f"the registry names a token service whose URL can't be read as one. {origin.check}"
        ) from error
    if not is_private:
        raise unavailable(
            f"the registry names a token service that must be at https://, and on this machine only if the registry "
            f"is; its scheme is '{parts.scheme[:20]}'. {origin.check}"
        )
    return realm


def _render(login: Login) -> str:
    return base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _is_kin(host: str, realm: str) -> bool:
    """Whether a login of one may be shown to the other: the same host, one that it is below, or Docker's."""
    asked, own = urlsplit(realm).hostname or "", urlsplit(f"//{host}").hostname or ""
    if asked == own or (own, asked) == (_DOCKER_HOST, "auth.docker.io"):
        return True
    return "." in asked and own.endswith(f".{asked}")
