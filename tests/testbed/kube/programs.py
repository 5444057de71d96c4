"""Finds or builds the programs of the test bed: the control plane, and what platform teams judge manifests with.

Each is one Go module beside this file, built into the tests' cache under the digest of its sources: a change builds
anew, and nothing is built twice. `KUBEBUILDER_ASSETS` may name a folder with `etcd`, `kube-apiserver`,
`kube-controller-manager` and `kubectl` instead.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from kit.cache import shared_cache

HERE = Path(__file__).parent
KUBERNETES = "v1.34.4"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
TOOLS = ("helm", "kstatus", "lua", "cel")
HELM = "v4.3.1"
# Downloading and linking a whole Kubernetes on two busy cores.
BUILD_SECONDS = 3600
_ASSETS = "KUBEBUILDER_ASSETS"


class NoPrograms(Exception):
    """Why there is no control plane on this machine: tests skip with these words."""


def component_command(component: str) -> list[str]:
    """The words that start one of `COMPONENTS`. NoPrograms if it is neither there nor can be built."""
    if assets := os.environ.get(_ASSETS):
        program = Path(assets) / component
        if not program.is_file():
            raise NoPrograms(f"`{_ASSETS}` must name a folder that holds '{component}'; '{assets}' doesn't")
        return [str(program)]
    return [str(ensure_program("controlplane")), component]


def tool_command(tool: str) -> list[str]:
    """The words that start one of `TOOLS`. NoPrograms if it can't be built."""
    assert tool in TOOLS, f"no tool named '{tool}'"
    return [str(ensure_program("tools")), tool]


def ensure_program(name: str) -> Path:
    """The program of the Go module `name`, built now if it never was. NoPrograms without Go."""
    target = shared_cache() / "kube" / f"{name}-{_digest(HERE / name)}"
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise NoPrograms(
            f"needs the test bed's program '{name}': put Go 1.26 or newer on PATH and run `make kube`"
            + (f", or set `{_ASSETS}`" if name == "controlplane" else "")
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build(HERE / name, target)
    return target


def module_folder(module: str, version: str) -> Path:
    """Where a Go module's files are: fetched once into Go's own cache. NoPrograms without Go."""
    if shutil.which("go") is None:
        raise NoPrograms(f"needs files of the Go module '{module}': put Go 1.26 or newer on PATH")
    answer = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"],
        cwd=HERE / "tools",
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if answer.returncode:
        raise NoPrograms(f"'{module}' can't be fetched: {answer.stdout}{answer.stderr}")
    return Path(json.loads(answer.stdout)["Dir"])


def _build(module: Path, target: Path) -> None:
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    variables = {f"{version}.{name}": value for name, value in stamps.items()}
    variables["helm.sh/helm/v4/internal/version.version"] = HELM
    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in variables.items())])
    partial = target.with_suffix(f".{os.getpid()}")
    command = ["go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", flags, "-o", str(partial), "."]
    # A larger heap before each collection of the compiler: a third less time for the linker of 120 MB.
    environment = os.environ | {"CGO_ENABLED": "0", "GOGC": "400", "GOFLAGS": "-buildvcs=false"}
    answer = subprocess.run(
        command, cwd=module, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if answer.returncode:
        raise NoPrograms(f"'{module.name}' can't be built: {answer.stderr[-2000:]}")
    partial.rename(target)


def _digest(module: Path) -> str:
    digest = hashlib.sha256(KUBERNETES.encode())
    for source in sorted([*module.glob("*.go"), module / "go.mod", module / "go.sum"]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
