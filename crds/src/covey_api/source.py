"""Source URIs of artifacts, by scheme: a hub's repository, a registry's, a wheel of a package index, a web address, a
path, a digest that the fleet itself keeps."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

_HF = r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?(#[^#\x00-\x1f\x7f]+)?"
_PYPI = r"pypi://[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*#[^#\x00-\x1f\x7f]+"
# Without `USER:PASSWORD@`: a Model is no place for secrets.
_WEB = r"https?://([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/[^#\x00-\x20\x7f]+"
_FILE = r"file:///[^#\x00-\x1f\x7f]+"
_OCI = (
    r"oci://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/[a-z0-9][a-z0-9._/-]*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?(#[^#\x00-\x1f\x7f]+)?"
)
_STORE = r"store://[0-9a-f]{64}(#[^#/\x00-\x1f\x7f]+)?"
# One pattern for the CRD and for the parser below.
SOURCE_PATTERN = f"^({_HF}|{_OCI}|{_PYPI}|{_WEB}|{_FILE}|{_STORE})$"
SOURCE_WORDS = (
    "must be 'hf://OWNER/REPO@REVISION#FILE', 'oci://REGISTRY/REPOSITORY:TAG#FILE', "
    "'pypi://NAME==VERSION#PATH-IN-WHEEL', 'https://HOST/PATH', 'file:///ABSOLUTE/PATH' or 'store://SHA256#NAME'"
)
# A signature is one small file, and needs nobody's word: who made it is what is looked at.
SIGNATURE_PATTERN = f"^({_HF.removesuffix('?')}|{_WEB}|{_FILE})$"
SIGNATURE_WORDS = "must be 'hf://OWNER/REPO@REVISION#FILE', 'https://HOST/PATH' or 'file:///ABSOLUTE/PATH'"
# What nobody vouches for but the Model: `sha256` must be beside it.
UNVOUCHED_PATTERN = "^https?://"
DEFAULT_REVISION = "main"
DEFAULT_TAG = "latest"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of a hub, or one file of it (with the files that it is one set with)."""

    repository: str
    """`OWNER/REPO`."""
    revision: str
    """A branch, a tag or a commit."""
    file: str
    """Path in the repository; empty: all that an engine loads."""


@dataclass(frozen=True, slots=True)
class OciSource:
    """An artifact of a registry, or one file of it (with the files that it is one set with)."""

    registry: str
    """`HOST` or `HOST:PORT`."""
    repository: str
    reference: str
    """A tag, or `sha256:DIGEST` of the manifest: where both are given, the digest is what counts."""
    file: str
    """The file's name; empty: all that an engine loads."""


@dataclass(frozen=True, slots=True)
class PypiSource:
    """One file inside one wheel of a package index."""

    project: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class WebSource:
    """A file at a web address."""

    url: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """An absolute path on the node that runs the model."""

    path: str


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A file or a folder that nodes of the fleet keep, by its digest."""

    sha256: str
    name: str
    """For people; empty: none was given."""


Source = HubSource | OciSource | PypiSource | WebSource | FileSource | StoreSource


def digest_in(source: str) -> str:
    """What a source itself says that its content must be; empty: it says nothing."""
    return source.removeprefix("store://").partition("#")[0] if re.fullmatch(_STORE, source) else ""


def render_store_source(sha256: str, name: str) -> str:
    """ValueError where the name is none that a source can have."""
    text = f"store://{sha256}#{name}"
    parse_source(text)
    return text


def parse_source(text: str) -> Source:
    """The parsed source. ValueError says what was found and what must hold."""
    if re.fullmatch(SOURCE_PATTERN, text) is None:
        raise ValueError(f"source {SOURCE_WORDS}; got '{text}'")
    scheme, _, rest = text.partition("://")
    where, _, inside = rest.partition("#")
    if scheme == "hf":
        repository, _, revision = where.partition("@")
        if ".." in revision:
            raise ValueError(f"revision must be a branch, a tag or a commit, without '..'; got '{revision}'")
        return HubSource(repository, revision or DEFAULT_REVISION, _parse_inside(inside, "repository"))
    if scheme == "oci":
        return _parse_oci(where, inside)
    if scheme == "pypi":
        project, _, version = where.partition("==")
        return PypiSource(project, version, _parse_inside(inside, "wheel"))
    if scheme == "store":
        return StoreSource(where, inside)
    if scheme == "file":
        return FileSource(unquote(urlsplit(text).path))
    return _parse_web(text)


def _parse_inside(path: str, what: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"path in the {what} must be relative without '..'; got '{path}'")
    return path


def _parse_oci(where: str, inside: str) -> OciSource:
    registry, _, path = where.partition("/")
    repository, _, digest = path.partition("@")
    repository, _, tag = repository.partition(":")
    if "//" in repository or ".." in repository or repository.endswith("/"):
        raise ValueError(f"repository must be a path of a registry, without '//' and '..'; got '{repository}'")
    if not 0 < int(registry.partition(":")[2] or 1) < 65536:
        raise ValueError(f"registry must have a port of 1 to 65535 if any; got '{registry}'")
    return OciSource(registry, repository, digest or tag or DEFAULT_TAG, _parse_inside(inside, "artifact"))


def _parse_web(text: str) -> WebSource:
    try:
        parts = urlsplit(text)
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"source must name a host, and a port of 1 to 65535 if any; got '{text}'")
    return WebSource(text)
