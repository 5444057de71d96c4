"""Whether Covey can be released as it stands: what is built, installed elsewhere, works; `make release-check`.

Builds wheels and sdists of all parts (each wheel from its sdist, so both are whole), the chart and the kinds into
`dist/`; installs the wheels by `install.sh --from` into an empty home, dependencies from the index; then runs the
smallest example from there to a streamed token. Nothing of the checkout is on the path of what runs.

The model and the engine come from the tests' cache. Helm packages the chart: the test bed's, built once (`make kube`).
"""

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import httpx
import uv
import yaml
from changelog import is_current
from kit.fleet import EXAMPLE, RunningFleet, wait_until
from kit.ports import free_port
from version import PARTS, ROOT, observe_copies, observe_version

from testbed.kube.programs import NoPrograms
from testbed.kube.tools import run_helm

DIST = ROOT / "dist"
BUILD_SECONDS, INSTALL_SECONDS, ASK_SECONDS = 600, 900, 120
PROGRAMS = (["covey"], ["kubectl-covey"], ["covey", "controller"], ["covey", "agent"], ["covey", "gateway"])
# A name on an index is for good, and who may use what was taken from there has to be said: both are the owner's to say.
UNPUBLISHED = "Private :: Do Not Upload"
_KINDS = "import json; from covey_api.registry import KINDS; from covey_api.schema import render_crd"


@contextmanager
def step(words: str) -> Generator[None]:
    began = time.monotonic()
    print(f"{words} …", flush=True)
    yield
    print(f"  {time.monotonic() - began:.1f} s", flush=True)


def build(version: str) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    command = [uv.find_uv_bin(), "build", "--quiet", "--all-packages", "--out-dir", str(DIST)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=BUILD_SECONDS)
    run_helm("package", str(ROOT / "manifests" / "chart"), "--destination", str(DIST))
    kinds = sorted((ROOT / "manifests" / "crds").glob("*.yaml"))
    (DIST / f"covey-crds-{version}.yaml").write_text("---\n".join(path.read_text() for path in kinds))


def check_packages(version: str) -> None:
    """What an index and pip read of each package."""
    for part in PARTS:
        wheels = [path for path in DIST.glob(f"*-{version}-py3-none-any.whl") if _source_of(path) == part]
        assert len(wheels) == 1, f"'{part}' must be built into one wheel of {version}; found {wheels}"
        found = read_metadata(wheels[0])
        said = {name: found[name] for name in ("Version", "Requires-Python", "Description-Content-Type")}
        wanted = {"Version": version, "Requires-Python": ">=3.11", "Description-Content-Type": "text/markdown"}
        assert said == wanted, f"'{part}': {said}, and must be {wanted}"
        assert found["Summary"], f"'{part}' must have a description"
        assert str(found.get_payload()).startswith(f"# {found['Name']}\n"), f"'{part}': its README must be in the wheel"
        assert found["License-Expression"] or UNPUBLISHED in found.get_all("Classifier", ()), (
            f"'{part}' has no licence: it must have the classifier '{UNPUBLISHED}', so that no index takes it"
        )
        sdist = DIST / f"{wheels[0].name.split('-')[0]}-{version}.tar.gz"
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        ours = {str(path.relative_to(ROOT / part)) for path in (ROOT / part / "src").rglob("*") if _is_source(path)}
        assert names >= ours | {"pyproject.toml", "README.md"}, f"'{sdist.name}' lacks {sorted(ours - names)}"


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _source_of(wheel: Path) -> str:
    """Which part has the package that is in it."""
    with zipfile.ZipFile(wheel) as archive:
        packages = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" not in name}
    return next((part for part in PARTS if any((ROOT / part / "src" / name).is_dir() for name in packages)), "")


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def check_chart(version: str) -> None:
    chart = DIST / f"covey-{version}.tgz"
    said = yaml.safe_load(run_helm("show", "chart", str(chart)).stdout)
    assert (said["version"], said["appVersion"]) == (version, version), said
    images = {line.split("image: ")[1] for line in _rendered(chart) if "image: " in line}
    assert images == {f"covey:{version}"}, images


def _rendered(chart: Path) -> list[str]:
    return run_helm("template", "covey", str(chart)).stdout.splitlines()


def check_kinds(python: Path, version: str) -> None:
    """The kinds beside the wheels are those that the installed parts know."""
    known = run(python, "-c", f"{_KINDS}; print(json.dumps([render_crd(kind) for kind in KINDS.values()]))")
    packed = list(yaml.safe_load_all((DIST / f"covey-crds-{version}.yaml").read_text()))
    assert sorted(json.loads(known), key=_name) == sorted(packed, key=_name), "the kinds that were packed are others"


def _name(crd: dict[str, dict[str, str]]) -> str:
    return crd["metadata"]["name"]


def install(home: Path) -> Path:
    """Into an empty home; the environment's Python. The installer's own doctor must find nothing broken."""
    command = ["/bin/sh", str(ROOT / "install.sh"), "--headless", "--from", str(DIST), "--python", sys.executable]
    environment = os.environ | {"HOME": str(home), "COVEY_STATE": str(home / "state")}
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"install.sh:\n{done.stdout}{done.stderr}"
    return home / ".local" / "share" / "covey" / "venv" / "bin" / "python"


def check_installed(python: Path, home: Path, version: str) -> None:
    for program, *words in PROGRAMS:
        said = run(home / ".local" / "bin" / program, *words, "--version").strip()
        assert said.endswith(f", version {version}"), f"{program} {' '.join(words)} --version: {said}"
    place = run(python, "-c", "import covey, covey_agent; print(covey.__file__, covey_agent.__file__)")
    assert all(word.startswith(str(home)) for word in place.split()), f"not from what was installed: {place}"


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, cwd=DIST, capture_output=True, text=True, timeout=ASK_SECONDS, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def check_serving(python: Path, base: Path, version: str) -> None:
    """`covey up` on the smallest example, a streamed token, `covey get`, and a clean end."""
    fleet = RunningFleet(base / "fleet", base / "state", free_port(), python=str(python))
    shutil.copytree(EXAMPLE, fleet.folder)
    fleet.start()
    try:
        fleet.wait_started()
        print(f"  first token: {read_token(fleet)!r}")
        rows = fleet.covey("get", "models,placements,nodes,instances").stdout
        print("".join(f"  {line}\n" for line in rows.splitlines()), end="")
        assert rows.count("smollm2") >= 3, rows
        told = json.loads(fleet.covey("get", "nodes", "-o", "json").stdout)["items"][0]["status"]["version"]
        served = httpx.get(f"{fleet.url}/openapi.json", timeout=ASK_SECONDS).json()["info"]["version"]
        assert (told, served) == (version, version), f"agent {told}, gateway {served}; must be {version}"
        ours = [each.cmdline()[0] for each in fleet.processes_of("covey_")]
        assert len(ours) >= 3, ours
        assert set(ours) == {str(python)}, ours
        seconds = fleet.stop()
        assert fleet.process.returncode == 0, f"code {fleet.process.returncode}:\n{fleet.error_path.read_text()}"
        wait_until(lambda: not fleet.processes(), "nothing is left running", 30)
        print(f"  ended in {seconds:.1f} s")
    finally:
        for process in fleet.processes():
            process.kill()


def read_token(fleet: RunningFleet) -> str:
    """The first text of a stream, before its end."""
    body = fleet.chat(stream=True, max_tokens=16)
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=ASK_SECONDS) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {") and (text := _text_of(line)):
                return text
    raise AssertionError("a stream without a token")


def _text_of(line: str) -> str:
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""


def describe_open(version: str) -> list[str]:
    """What isn't an error, and stands before a release."""
    found: list[str] = []
    if not is_current(version):
        found.append(f"CHANGELOG.md lacks something that changes/ says of {version}: make changelog")
    if not (ROOT / "LICENSE").exists():
        found.append(f"there is no licence and no home page, so packages have the classifier '{UNPUBLISHED}'")
    return found


def main() -> int:
    version = observe_version()
    os.environ.pop("PYTHONPATH", None)  # the tests' kit, for this process alone
    others = {(file, said) for file, said in observe_copies() if said != version}
    assert not others, f"must be {version}: {others}"
    with tempfile.TemporaryDirectory(prefix="cv") as scratch:  # short: Unix sockets live below it
        base = Path(scratch)
        try:
            with step(f"Building Covey {version} into dist/"):
                build(version)
        except NoPrograms as error:
            print(error, file=sys.stderr)
            return 1
        with step("Reading what was built"):
            check_packages(version)
            check_chart(version)
        with step("Installing the wheels into an empty home by install.sh"):
            home = base / "home"
            home.mkdir()
            python = install(home)
            check_installed(python, home, version)
            check_kinds(python, version)
        with step("Serving from what was installed"):
            check_serving(python, base, version)
    print(f"Covey {version} can be built, installed and run: dist/ has {len(list(DIST.iterdir()))} files.")
    for words in describe_open(version):
        print(f"Before a release: {words}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
