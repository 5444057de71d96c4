"""What people should know about a git source. Pure words, the same for the same state."""

import shlex
from collections.abc import Collection
from pathlib import Path

from covey_controller.stores.git.address import GitAddress
from covey_controller.stores.git.command import CREDENTIALS_VARIABLE, Fault, GitFault

# Each is told whole; the others come when these are settled.
_MAX_ASIDE = 5
_GOES_ON = "What ran goes on, and it is tried again."
_HINTS = {
    Fault.DENIED: (
        f"Give this user credentials: a credentials file (0600, named in {CREDENTIALS_VARIABLE}), a credential helper "
        "of git's, or for SSH a key in the agent and the host in known_hosts."
    ),
    Fault.GONE: "Nothing is changed or deleted for that: put it back, or start with another source.",
    Fault.TOO_LARGE: "",
    Fault.UNREACHABLE: "",
    Fault.REJECTED: "",
    Fault.DAMAGED: "The clone is put aside and made anew.",
    Fault.UNUSABLE: "",
}


def render_fault(address: str, error: GitFault) -> str:
    """Why the source can't be followed now, and what to do."""
    return f"source '{address}' can't be followed: {render_cause(error)} {_GOES_ON}"


def render_cause(error: GitFault) -> str:
    return f"{str(error).rstrip('.')}. {_HINTS[error.fault]}".strip()


def render_place(address: GitAddress, commit: str) -> str:
    """Where documents are looked for: whoever finds none wants to know in which commit that was."""
    path = f"path '{address.path}' of " if address.path else ""
    return f"{path}source '{address}' at commit {commit}"


def render_line_notices(clone: Path, branch: str, ahead: int, aside: Collection[str], pushes: bool) -> list[str]:
    """Edits that the remote doesn't have."""
    notices: list[str] = []
    if ahead and not pushes:
        # People paste this; what a branch may be called, a shell may run.
        target = shlex.quote(f"covey:{branch or 'refs/heads/BRANCH'}")
        notices.append(
            f"{ahead} {'edit is' if ahead == 1 else 'edits are'} only in the clone '{clone}', ahead of the remote. "
            f"Push with: git -C '{clone}' push origin {target} (or start with `--push`)"
        )
    for ref in sorted(aside)[:_MAX_ASIDE]:
        notices.append(
            f"edit {ref.rpartition('/')[2]} contradicts what the remote became, and was taken back: see it with "
            f"git -C '{clone}' show {ref}, make it again if it is still wanted, then remove it with "
            f"git -C '{clone}' update-ref -d {ref}"
        )
    return notices
