"""What a registry says: a manifest's files, how to log in, the logins that the user keeps. No HTTP here.

A layer is a file if it says its name (`org.opencontainers.image.title`, as ORAS writes it, or the model
specification's own `filepath`), or if its type is one that is a GGUF file whatever its name. Layers of other
forms, such as archives of folders, are none of an engine's and are left out, and named where a file is missed.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from covey_agent.artifacts.hub import HubFile, Repository, is_file_path
from covey_agent.artifacts.index import Login

logger = logging.getLogger(__name__)

ACCEPT = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.index.v1+json;q=0.5"
)
_NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
# Each is one GGUF file: Docker's model runner, Ollama.
_GGUF_TYPES = frozenset({"application/vnd.docker.ai.gguf.v3", "application/vnd.ollama.image.model"})
_UNNAMED = "model.gguf"
# What `oras push` calls every file that it is told no type of: a tar only where it says that it is to be unpacked.
_ORAS_FILE = "application/vnd.oci.image.layer.v1.tar"
_ORAS_UNPACK = "io.deis.oras.content.unpack"
_ARCHIVES = (".tar", "+gzip", "+zstd", ".tar.gz")
# Of a layer that is left out: enough to know it again.
_MAX_SHOWN = 100
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
# Docker's own registry has one name for people, one for machines, and one for logins.
_DOCKER, _DOCKER_HOST, _DOCKER_LOGIN = "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"
_MAX_LOGINS_BYTES = 1024 * 1024


def host_of(registry: str) -> str:
    return _DOCKER_HOST if registry == _DOCKER else registry


def parse_manifest(text: bytes, reference: str) -> Repository:
    """ValueError says why it isn't one that can be used."""
    digest = hashlib.sha256(text).hexdigest()
    if (wanted := _DIGEST.fullmatch(reference)) and wanted[1] != digest:
        raise ValueError(f"it must have sha256 {wanted[1]}, and has {digest}")
    try:
        page: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    fields = cast("dict[str, object]", page) if isinstance(page, dict) else {}
    layers = fields.get("layers")
    if isinstance(fields.get("manifests"), list):
        raise ValueError("it is an index of several; name one of them by '@sha256:DIGEST'")
    if not isinstance(layers, list):
        raise ValueError("its JSON has no list `layers`")
    parsed = [(layer, _parse_layer(layer)) for layer in cast("list[object]", layers)]
    found = sorted((file for _, file in parsed if file), key=lambda file: file.path)
    left_out = tuple(_describe_layer(layer) for layer, file in parsed if not file)
    return Repository(digest, {file.path: file for file in found}, "manifest", left_out)


def _parse_layer(layer: object) -> HubFile | None:
    fields = cast("dict[str, object]", layer) if isinstance(layer, dict) else {}
    digest, size, kind, notes = (fields.get(name) for name in ("digest", "size", "mediaType", "annotations"))
    named = cast("dict[str, object]", notes) if isinstance(notes, dict) else {}
    is_gguf = isinstance(kind, str) and kind in _GGUF_TYPES
    name = next((named[key] for key in _NAMES if key in named), _UNNAMED if is_gguf else None)
    matched = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if not matched or not isinstance(size, int) or size < 0 or not isinstance(name, str) or not is_file_path(name):
        return None
    if isinstance(kind, str) and kind.endswith(_ARCHIVES) and (kind != _ORAS_FILE or _ORAS_UNPACK in named):
        return None
    return HubFile(name, size, matched[1], "")


def _describe_layer(layer: object) -> str:
    fields = cast("dict[str, object]", layer) if isinstance(layer, dict) else {}
    digest, kind, notes = (fields.get(name) for name in ("digest", "mediaType", "annotations"))
    named = cast("dict[str, object]", notes) if isinstance(notes, dict) else {}
    name = next((named[key] for key in _NAMES if key in named), digest)
    return f"{_shown(name) or 'without a digest'} of type {_shown(kind) or 'unknown'}"


def _shown(text: object) -> str:
    return f"'{text[:_MAX_SHOWN]}'" if isinstance(text, str) and text.isprintable() else ""


def parse_challenge(challenge: str) -> tuple[str, dict[str, str]]:
    """The scheme in small letters, and its parameters."""
    scheme, _, rest = challenge.partition(" ")
    return scheme.lower(), dict(_PARAMETER.findall(rest))


def parse_token(text: bytes) -> str:
    """Of a token service's answer; empty: it gave none."""
    try:
        page: object = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    fields = cast("dict[str, object]", page) if isinstance(page, dict) else {}
    token = fields.get("token") or fields.get("access_token")
    is_word = isinstance(token, str) and all("!" <= letter <= "~" for letter in token)
    return cast("str", token) if is_word else ""


def find_login(environment: Mapping[str, str], home: Path, registry: str, repository: str = "") -> Login | None:
    """As `docker login`, `podman login` and `oras login` keep it. Programs that keep logins elsewhere aren't asked.

    Podman keeps them of parts of a registry too (`podman login quay.io/team`): the narrowest that has the repository.
    """
    folder = _docker_folder(environment, home)
    kept = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"
    given, session = environment.get("REGISTRY_AUTH_FILE"), environment.get("XDG_RUNTIME_DIR")
    # Where podman keeps them until the machine starts anew, unless told otherwise.
    fleeting = (Path(session) / "containers" / "auth.json",) if session else ()
    names = repository.split("/") if repository else []
    narrow = (f"{registry}/{'/'.join(names[:count])}" for count in range(len(names), 0, -1))
    keys = (*narrow, registry, f"https://{registry}", *((_DOCKER_LOGIN,) if registry == _DOCKER else ()))
    for path in (*((Path(given),) if given else ()), folder / "config.json", *fleeting, kept):
        logins = _read_logins(path)
        for key in keys:
            if login := _parse_login(logins.get(key)):
                return login
    return None


def find_helper(environment: Mapping[str, str], home: Path, registry: str) -> str:
    """The program that keeps Docker's login of this registry instead of its file; empty: there is none."""
    page = _read_page(_docker_folder(environment, home) / "config.json")
    helpers = page.get("credHelpers")
    named = cast("dict[str, object]", helpers).get(registry) if isinstance(helpers, dict) else None
    found = named or page.get("credsStore")
    is_name = isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found)
    return f"docker-credential-{found}" if is_name else ""


def _docker_folder(environment: Mapping[str, str], home: Path) -> Path:
    return Path(environment.get("DOCKER_CONFIG") or home / ".docker")


def _read_logins(path: Path) -> dict[str, object]:
    auths = _read_page(path).get("auths")
    return cast("dict[str, object]", auths) if isinstance(auths, dict) else {}


def _read_page(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            page: object = json.loads(file.read(_MAX_LOGINS_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        # The name of the error only: its text may quote the file.
        logger.warning("%s is not used: it can't be read as logins of registries (%s)", path, type(error).__name__)
        return {}
    return cast("dict[str, object]", page) if isinstance(page, dict) else {}


def _parse_login(entry: object) -> Login | None:
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    auth = fields.get("auth")
    if not isinstance(auth, str):
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode("utf-8").partition(":")
    except ValueError:
        return None
    return Login(user, password) if colon and user else None
