"""A hub of models (Hugging Face's, or one with the same HTTP API): the machine's settings, its answers. No HTTP here.

The settings are those of Hugging Face's own tools, so that a login or a mirror needs to be named once. Their library
was the alternative to the one call that is read here (ADR 38): it brings an HTTP client of its own, a native
downloader and settings read at import, and whom a token is shown would be decided in two places.

A file that the hub gives no digest for is refused. Large files have a sha256; small ones the hash of a git blob, which
is checked once by whoever resolves the source.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import cast
from urllib.parse import quote

from covey_api.model import FILE_NAME_PATTERN, MAX_FILE_NAME_LENGTH
from covey_api.source import HubSource
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts.checkpoint import CONFIG
from covey_agent.artifacts.index import split_login
from covey_agent.artifacts.web import Origin, corrupt, unavailable

logger = logging.getLogger(__name__)

DEFAULT_ENDPOINT = "https://huggingface.co"
GGUF = ".gguf"
SAFETENSORS = ".safetensors"
# Files named when the wanted one isn't there: enough to see a typo, or to choose a quantisation.
_NAMED = 12
# A token is one word; a file that holds more is something else.
_MAX_TOKEN = 1024
# As long as a file system takes, and as an artifact may have it.
_FILE_NAME = re.compile(rf"(?=.{{1,{MAX_FILE_NAME_LENGTH}}}$){FILE_NAME_PATTERN}")


@dataclass(frozen=True, slots=True)
class HubSettings:
    endpoint: str = DEFAULT_ENDPOINT
    token: str = field(default="", repr=False)
    token_path: Path | None = None
    """Where the token is, if it isn't given: read at each use, so that a new one is taken without a restart."""

    @property
    def origin(self) -> Origin:
        token = self.token or (_checked(_read_token(self.token_path).strip()) if self.token_path else "")
        return Origin(
            says="as the hub says",
            check=f"Check HF_ENDPOINT ('{self.endpoint}').",
            login=(
                "The repository may not exist, be private, or ask for its terms to be accepted. Give the agent a token "
                "by HF_TOKEN or `hf auth login`, and see the repository's page with that account."
            ),
            missing="there is no such repository, revision or file. Change the source.",
            token=token,
        )


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository."""

    path: str
    size_bytes: int
    sha256: str
    """Empty for a small file."""
    blob_id: str
    """Hash of its git blob; empty when the hub says none."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@dataclass(frozen=True, slots=True)
class Repository:
    """What a revision holds."""

    commit: str
    files: Mapping[str, HubFile]
    word: str = "commit"
    """What a `commit` is called there."""
    left_out: tuple[str, ...] = ()
    """What else it holds that is no file, in words."""

    @property
    def left_words(self) -> str:
        """For a message that a file is missed."""
        if not self.left_out:
            return ""
        more = f" and {len(self.left_out) - _NAMED} more" if len(self.left_out) > _NAMED else ""
        return f" Left out, since they are no named files: {', '.join(self.left_out[:_NAMED])}{more}."


def observe_hub_settings(environment: Mapping[str, str], home: Path) -> HubSettings:
    """As Hugging Face's tools find them."""
    endpoint, login = split_login((environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).strip().rstrip("/"))
    if login is not None:
        logger.warning("the login in HF_ENDPOINT is not used: give a token by HF_TOKEN, or a login in ~/.netrc")
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or ""
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    folder = Path(environment.get("HF_HOME") or cache / "huggingface").expanduser()
    path = Path(environment.get("HF_TOKEN_PATH") or folder / "token").expanduser()
    return HubSettings(endpoint, _checked(token.strip()), path)


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_MAX_TOKEN + 1)
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s is not used: it can't be read as a token (%s)", path, type(error).__name__)
        return ""


def _checked(token: str) -> str:
    if len(token) <= _MAX_TOKEN and all("!" <= letter <= "~" for letter in token):
        return token
    logger.warning("the hub's token is not used: it must be one word of at most %d characters", _MAX_TOKEN)
    return ""


def revision_url(endpoint: str, source: HubSource) -> str:
    return f"{endpoint}/api/models/{source.repository}/revision/{quote(source.revision, safe='')}?blobs=true"


def file_url(endpoint: str, repository: str, commit: str, path: str) -> str:
    return f"{endpoint}/{repository}/resolve/{commit}/{quote(path)}"


def parse_repository(text: bytes) -> Repository:
    """ValueError says why it isn't one."""
    try:
        page: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    fields = cast("dict[str, object]", page) if isinstance(page, dict) else {}
    commit, siblings = fields.get("sha"), fields.get("siblings")
    if not isinstance(commit, str) or not _is_hex(commit, 40) or not isinstance(siblings, list):
        raise ValueError("its JSON has no commit `sha` or no list `siblings`")
    found = [file for entry in cast("list[object]", siblings) if (file := _parse_file(entry))]
    return Repository(commit, {file.path: file for file in sorted(found, key=lambda file: file.path)})


def _parse_file(entry: object) -> HubFile | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, object]", entry)
    path, size, blob_id, lfs = (fields.get(name) for name in ("rfilename", "size", "blobId", "lfs"))
    large = cast("dict[str, object]", lfs) if isinstance(lfs, dict) else {}
    size = large.get("size", size)
    if not isinstance(path, str) or not isinstance(size, int) or size < 0 or not is_file_path(path):
        return None
    sha256 = large.get("sha256")
    return HubFile(
        path,
        size,
        sha256 if isinstance(sha256, str) and _is_hex(sha256, 64) else "",
        blob_id if isinstance(blob_id, str) and _is_hex(blob_id, 40) else "",
    )


def is_file_path(path: str) -> bool:
    """Whether it names a file in a repository, and nothing outside."""
    if len(path) > 1024 or path.startswith("/") or ".." in path.split("/"):
        return False
    if not _FILE_NAME.fullmatch(PurePosixPath(path).name):
        return False
    return not any(letter < " " or letter == "\x7f" or "\ud800" <= letter <= "\udfff" for letter in path)


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and all(digit in "0123456789abcdef" for digit in text)


def hash_git_blob(content: bytes) -> str:
    """Not for security by itself: it came by TLS from whom it is compared with."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def choose_gguf(found: Repository, source: HubSource) -> tuple[HubFile, ...]:
    """The files of the GGUF model that is asked for, in order; empty when it isn't one that is asked for."""
    ggufs = [path for path in found.files if path.endswith(GGUF)]
    wanted = source.file
    # One in a folder must be named: whoever fetches it has the source alone to tell the folder by.
    if not wanted and CONFIG not in found.files and len({_stem(path) for path in ggufs}) == 1 and "/" not in ggufs[0]:
        wanted = ggufs[0]
    if not wanted:
        if ggufs and CONFIG not in found.files:
            raise unavailable(
                f"'{source.repository}' has no single GGUF model at its top. Choose one with '#FILE' in the source: "
                f"{_list(ggufs)}."
            )
        return ()
    if not wanted.endswith(GGUF):
        raise unavailable(
            f"'#{wanted}' must name a GGUF file. For a folder of safetensors leave '#{wanted}' away in the source."
        )
    paths = [str(PurePosixPath(wanted).with_name(name)) for name in _shards(PurePosixPath(wanted).name)]
    if missing := [path for path in paths if path not in found.files]:
        what = f"{len(missing)} of the {len(paths)} files of the model: " if len(paths) > 1 else ""
        raise unavailable(
            f"'{source.repository}' at {found.word} {found.commit} lacks {what}{_list(missing)}. It has: "
            f"{_list(ggufs) or 'no GGUF file'}. Change '#FILE' in the source.{found.left_words}"
        )
    return tuple(found.files[path] for path in paths)


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_name(_shards(PurePosixPath(path).name)[0]))


def _shards(name: str) -> tuple[str, ...]:
    try:
        return list_shards(name)
    except HeaderInvalid as error:
        raise corrupt(str(error)) from error


def _list(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(f"'{path}'" for path in paths[:_NAMED]) + more
