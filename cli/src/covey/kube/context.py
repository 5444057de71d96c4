"""Which cluster is meant: the kubeconfig's context, as kubectl itself reads it.

kubectl merges files, resolves the context and refuses what is wrong; reading kubeconfigs here would be a second
opinion.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from covey_api.meta import DEFAULT_NAMESPACE

from covey.errors import CommandError, ExitCode

# It reads a file or two; a busy machine needs seconds to start it.
KUBECTL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster, as one user."""

    name: str
    server: str
    namespace: str
    flags: tuple[str, ...]
    """What makes kubectl mean the same."""


def find_kubectl() -> str:
    """Path of kubectl. CommandError says why it is needed."""
    found = shutil.which("kubectl")
    if found is None:
        raise CommandError(
            "`kubectl` must be on PATH to reach a Kubernetes API (it knows how to log in); it isn't. Install it, or "
            "name a Covey without Kubernetes by --state or --url."
        )
    return found


def has_kubeconfig() -> bool:
    """Whether kubectl would find a kubeconfig without being told where."""
    given = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    return any(path.is_file() for path in given or [Path.home() / ".kube" / "config"])


def observe_context(kubeconfig: Path | None, context: str | None) -> Context:
    """The context that is meant. CommandError with kubectl's own words where there is none."""
    flags = (
        *([f"--kubeconfig={kubeconfig}"] if kubeconfig else []),
        *([f"--context={context}"] if context else []),
    )
    command = [find_kubectl(), *flags, "config", "view", "--minify", "--output=json"]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"`kubectl config view` did not answer within {KUBECTL_SECONDS:.0f} s", ExitCode.TIMED_OUT
        ) from None
    if answer.returncode:
        words = answer.stderr.strip().removeprefix("error: ")
        raise CommandError(f"the kubeconfig names no cluster to use: {words}", ExitCode.WRONG_USE)
    return _parse_context(json.loads(answer.stdout), flags)


def _parse_context(view: dict[str, Any], flags: tuple[str, ...]) -> Context:
    contexts, clusters = (cast("list[dict[str, Any]]", view.get(key) or []) for key in ("contexts", "clusters"))
    name = str(view.get("current-context", ""))
    chosen: dict[str, Any] = contexts[0].get("context", {}) if contexts else {}
    server: dict[str, Any] = clusters[0].get("cluster", {}) if clusters else {}
    if not server.get("server"):
        raise CommandError(f"context '{name}' of the kubeconfig must name a cluster with a `server`; it doesn't")
    return Context(name, str(server["server"]), str(chosen.get("namespace") or DEFAULT_NAMESPACE), flags)
