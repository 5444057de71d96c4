"""Where a git source is: `git+https://HOST/REPO[.git]#PATH@REF`. Pure: words in, an address or a refusal out.

PATH and REF are optional: the repository's root, the remote's default branch. The first `@` after `#` ends PATH (write
one in a path as `%40`), so REF may hold any. An address is shown, logged and given to git as an argument; therefore it
never holds a secret, and one that does is refused without being repeated.
"""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

PREFIX = "git+"
SCHEMES = ("https", "ssh", "file")
MAX_LENGTH = 2048
_FORM = "'git+https://HOST/REPO#PATH@REF', 'git+ssh://USER@HOST/REPO#PATH@REF' or 'git+file:///FOLDER#PATH@REF'"
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
# What git itself refuses in the name of a branch or tag, and an option in its place.
_BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|[/.]$|\.lock$")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class GitAddress:
    """One path in one repository at one ref."""

    url: str
    """As git takes it; no secret is in it."""
    path: str
    """Relative to the repository's root, `/` between parts; empty for the root."""
    ref: str
    """A branch, a tag, a full ref, a full commit; empty for the default branch."""

    def __str__(self) -> str:
        ref = f"@{self.ref}" if self.ref else ""
        path = quote(self.path, safe="/+ ")
        return f"{PREFIX}{self.url}" + (f"#{path}{ref}" if path or ref else "")

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def is_commit(self) -> bool:
        """True when REF names one commit for ever."""
        return _COMMIT.fullmatch(self.ref) is not None


def is_git_address(text: str) -> bool:
    """Whether a source means a repository. A folder of such a name is given as `./git+…`."""
    return text.startswith(PREFIX)


def parse_git_address(text: str) -> GitAddress:
    """ValueError says what must hold; it never repeats what may be a password."""
    if len(text) > MAX_LENGTH or not text.isprintable():
        raise ValueError(f"source must be at most {MAX_LENGTH} printable characters long")
    url, _, fragment = text.removeprefix(PREFIX).partition("#")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"source must be {_FORM}; its host or port can't be read") from None
    _require_no_secret(parts)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"source must be {_FORM}; got the scheme '{PREFIX}{parts.scheme}'")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError(f"source must be 'git+file:///FOLDER' with an absolute path; got '{text}'")
    elif not parts.hostname or parts.hostname.startswith("-") or not parts.path.strip("/"):
        raise ValueError(f"source must name a host and a repository: {_FORM}; got '{text}'")
    path, _, ref = fragment.partition("@")
    return GitAddress(url, _parse_path(path), _parse_ref(ref))


def _require_no_secret(parts: SplitResult) -> None:
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise ValueError(
            "source must not hold a user or password: it is shown, logged and seen by other users of this machine. "
            "Write `https://USER:PASSWORD@HOST` into a file that only you can read (mode 0600), name that in the "
            "environment variable COVEY_GIT_CREDENTIALS, and leave both out here. Git's own credential helpers work "
            "too, as does `git+ssh://` with an SSH agent."
        )
    if parts.username is not None and not _USER.fullmatch(parts.username):
        raise ValueError("source's user must be letters, digits, '.', '_' and '-'")
    if parts.query:
        raise ValueError("source must not hold a query ('?…'): it is shown and logged, and git needs none")


def _parse_path(text: str) -> str:
    path = unquote(text, errors="strict").strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ValueError(f"path in the source must have no empty, '.' or '..' part; got '{text}'")
    if not path.isprintable():
        raise ValueError("path in the source must be printable")
    return path


def _parse_ref(ref: str) -> str:
    if ref and (_BAD_REF.search(ref) or not ref.isprintable()):
        raise ValueError(f"ref in the source must be a branch, a tag or a commit of 40 hex digits; got '{ref}'")
    return ref
