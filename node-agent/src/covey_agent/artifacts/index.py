"""The package index: the machine's own settings for it, and its pages. No HTTP here.

The settings are those of pip and uv, so that a mirror or a private index needs to be named once. Pages are PEP 691
JSON, or PEP 503 HTML where an index speaks only that. A file without a sha256 on its page is refused: the digest of the
index is what everything that is fetched is verified against.

Credentials are cut out of a URL before it is kept, and live in `Login` alone, which doesn't print them.
"""

import configparser
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import cast
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from covey_api.reasons import FailureCause
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from covey_agent.ports import AgentError

logger = logging.getLogger(__name__)

DEFAULT_INDEX_URL = "https://pypi.org/simple"
_JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{_JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
# uv also takes `NAME=URL`.
_NAMED_INDEX = re.compile(r"^[A-Za-z0-9._-]+=(?=https?://)")
# Versions named when the wanted one isn't there: enough to see a typo.
_VERSIONS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials for one origin."""

    user: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Where packages come from. `logins` are keyed by origin: `https://host:443`."""

    url: str
    logins: Mapping[str, Login] = field(default_factory=dict[str, Login], repr=False)
    netrc: Path | None = None
    authorities: Path | None = None
    """PEM bundle to trust instead of the system's; None: the system's."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file on a project's page."""

    filename: str
    url: str
    sha256: str
    """Empty when the page gives none."""
    size_bytes: int
    """Zero when the page doesn't say."""
    provenance: str = ""
    """Where its publisher's attestations are (PEP 740); empty when the page says nowhere."""


def origin_of(url: str) -> str:
    """Scheme, host and port: what credentials belong to."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.scheme}://{parts.hostname or ''}:{port}"


def split_login(url: str) -> tuple[str, Login | None]:
    """The URL without credentials, and the credentials."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    host = parts.netloc.rpartition("@")[2]
    login = Login(unquote(parts.username or ""), unquote(parts.password or ""))
    return SplitResult(parts.scheme, host, parts.path, parts.query, parts.fragment).geturl(), login


def observe_index_settings(environment: Mapping[str, str], home: Path) -> IndexSettings:
    """As pip and uv would find them: environment first, then pip's configuration files, else pypi.org."""
    configured = _read_pip_configuration(environment, home)
    url = (
        _NAMED_INDEX.sub("", environment.get("UV_DEFAULT_INDEX", ""))
        or environment.get("UV_INDEX_URL")
        or environment.get("PIP_INDEX_URL")
        or configured.get("index-url")
        or DEFAULT_INDEX_URL
    )
    url, login = split_login(url.strip().rstrip("/"))
    bundle = (
        environment.get("SSL_CERT_FILE")
        or environment.get("REQUESTS_CA_BUNDLE")
        or environment.get("PIP_CERT")
        or configured.get("cert")
    )
    netrc = Path(environment.get("NETRC") or home / ".netrc")
    return IndexSettings(
        url=url,
        logins={origin_of(url): login} if login else {},
        netrc=netrc if netrc.is_file() else None,
        authorities=Path(bundle) if bundle else None,
    )


def _read_pip_configuration(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """`[global]` of pip's configuration files; later files win, as in pip."""
    explicit = environment.get("PIP_CONFIG_FILE", "")
    if explicit == os.devnull:
        return {}
    xdg = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", xdg / "pip" / "pip.conf"]
    if sys.platform == "darwin":
        support = Path("Library/Application Support/pip/pip.conf")
        paths[:1] = [Path("/") / support]
        paths.append(home / support)
    paths.append(Path(sys.prefix) / "pip.conf")
    if explicit:
        paths.append(Path(explicit))
    found: dict[str, str] = {}
    for path in paths:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            # The name of the error only: its text quotes the file, which may hold a password.
            logger.warning("%s is not used: it can't be read as a pip configuration (%s)", path, type(error).__name__)
            continue
        if parser.has_section("global"):
            found.update(parser.items("global"))
    return found


def project_url(settings: IndexSettings, project: str) -> str:
    return f"{settings.url}/{canonicalize_name(project)}/"


def parse_page(content_type: str, text: str, url: str) -> tuple[IndexFile, ...]:
    """Files on a project's page. ValueError says why it isn't one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in (_JSON_TYPE, "application/json"):
        return _parse_json(text, url)
    if kind in ("text/html", "application/vnd.pypi.simple.v1+html"):
        return _parse_html(text, url)
    raise ValueError(f"it is '{kind}', neither PEP 691 JSON nor PEP 503 HTML")


def _parse_json(text: str, url: str) -> tuple[IndexFile, ...]:
    try:
        page: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    files = cast("dict[str, object]", page).get("files") if isinstance(page, dict) else None
    if not isinstance(files, list):
        raise ValueError("its JSON has no list `files`")
    found: list[IndexFile] = []
    for entry in cast("list[object]", files):
        if not isinstance(entry, dict):
            continue
        fields = cast("dict[str, object]", entry)
        filename, link, size = fields.get("filename"), fields.get("url"), fields.get("size")
        hashes = fields.get("hashes")
        sha256 = cast("dict[str, object]", hashes).get("sha256") if isinstance(hashes, dict) else None
        if isinstance(filename, str) and isinstance(link, str):
            target, _ = split_login(urljoin(url, link))
            size_bytes = size if isinstance(size, int) and size > 0 else 0
            proof = fields.get("provenance")
            provenance, _ = split_login(urljoin(url, proof)) if isinstance(proof, str) and proof else ("", None)
            found.append(IndexFile(filename, target, _digest(sha256), size_bytes, provenance))
    return tuple(found)


def _digest(text: object) -> str:
    if not isinstance(text, str) or len(text) != 64:
        return ""
    return text.lower() if all(digit in "0123456789abcdef" for digit in text.lower()) else ""


class _Links(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.base = url
        self.links: list[tuple[str, str]] = []
        """Each with where its provenance is."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        href, proof = found.get("href"), found.get("data-provenance")
        if tag == "base" and href:
            self.base = urljoin(self.base, href)
        elif tag == "a" and href:
            self.links.append((urljoin(self.base, href), urljoin(self.base, proof) if proof else ""))


def _parse_html(text: str, url: str) -> tuple[IndexFile, ...]:
    parser = _Links(url)
    parser.feed(text)
    parser.close()
    found: list[IndexFile] = []
    for link, proof in parser.links:
        target, _ = split_login(link)
        target, _, fragment = target.partition("#")
        name, _, value = fragment.partition("=")
        filename = PurePosixPath(unquote(urlsplit(target).path)).name
        found.append(IndexFile(filename, target, _digest(value) if name == "sha256" else "", 0, split_login(proof)[0]))
    return tuple(found)


def choose_wheels(files: tuple[IndexFile, ...], project: str, version: str, index: str) -> tuple[IndexFile, ...]:
    """Wheels of exactly this version, those for any platform first. AgentError when there is none that can be used."""
    versions: dict[Version, list[tuple[bool, IndexFile]]] = {}
    for file in files:
        try:
            name, found, _, tags = parse_wheel_filename(file.filename)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        if name == canonicalize_name(project):
            versions.setdefault(found, []).append((not any(tag.platform == "any" for tag in tags), file))
    wanted = _parse_version(version)
    wheels = versions.get(wanted, []) if wanted else []
    if not wheels:
        named = [str(found) for found in sorted(versions)[-_VERSIONS_NAMED:]]
        have = f"it has {', '.join(named)}" if named else "it has none of this project"
        raise AgentError(
            FailureCause.ARTIFACT_UNAVAILABLE,
            f"index {index} has no wheel of {project}=={version}; {have}. Change the source.",
        )
    usable = sorted((wheel for wheel in wheels if wheel[1].sha256), key=lambda wheel: (wheel[0], wheel[1].filename))
    if not usable:
        raise AgentError(
            FailureCause.ARTIFACT_UNAVAILABLE,
            f"index {index} gives no sha256 for '{wheels[0][1].filename}', so it can't be verified and isn't fetched. "
            "Use an index that publishes digests.",
        )
    return tuple(file for _, file in usable)


def _parse_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
