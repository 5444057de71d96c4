"""The guide `docs/guides/gitops.md`, section 'Without Kubernetes': every command of it is run, in order, as written.

The forge's address is replaced by a server of the test's own. Lines that need `sops` and `age-keygen` are run where
both are installed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from kit.cache import shared_cache
from kit.git import ENVIRONMENT, Repository, git_server
from kit.ports import free_port
from kit.processes import processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "gitops.md"
SECTION = "## Without Kubernetes"
BLOCK = re.compile(r"^```sh ?(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LOGIN = ("covey", "TOKEN")
MARK = "=== block"


@pytest.fixture
def base() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cv"))  # short: Unix sockets live below it
    yield folder
    for process in processes_of(folder):
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def section() -> str:
    text = GUIDE.read_text()
    return text[text.index(SECTION) :].partition("\n## ")[0]


def script(address: str) -> str:
    """The blocks as one script, with a mark before each; what runs in the foreground for ever is put behind."""
    parts = ["set -euo pipefail", "up=''", "trap 'test -z \"$up\" || { kill -INT $up; wait $up || true; }' EXIT"]
    for number, block in enumerate(BLOCK.finditer(section())):
        text = block["text"].replace("forge.example", address)
        parts.append(f"echo '{MARK} {number}'")
        match block["kind"]:
            case "up":
                parts += [
                    f"{text.rstrip()} > up.log 2>&1 & up=$!",
                    "until covey get source > /dev/null 2>&1; do sleep 0.3; kill -0 $up; done",
                ]
            case "sops":
                parts += [f"if command -v sops && command -v age-keygen; then\n{text}fi"]
            case _:
                parts.append(text)
    return "\n".join(parts)


def test_every_command_of_the_guide_does_what_it_says(base: Path) -> None:
    served = base / "served" / "team"
    Repository(served)
    work = base / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    (work / "hub.yaml").write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\nstringData: {token: test}\n")
    with git_server(base / "served") as server:
        server.knobs.login = LOGIN
        address = f"127.0.0.1:{server.port}"
        (base / "login").write_text(f"https://{':'.join(LOGIN)}@{address}\n")
        (base / "gitconfig").write_text(f'[credential]\n\thelper = store --file="{base / "login"}"\n')
        environment = ENVIRONMENT | {
            "GIT_CONFIG_GLOBAL": str(base / "gitconfig"),
            "GIT_SSL_CAINFO": str(server.authority),
            "HOME": str(base),  # no COVEY_STATE: the guide must do without, as a reader does
            "COVEY_CACHE": str(shared_cache()),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        text = script(address).replace("covey up ", f"covey up --port {free_port()} ")
        with subprocess.Popen(
            ["bash", "-c", text], cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as shell:
            try:
                output, _ = shell.communicate(timeout=800)
            except BaseException:
                shell.send_signal(signal.SIGTERM)
                raise
        log = (work / "up.log").read_text() if (work / "up.log").exists() else ""
        assert shell.returncode == 0, f"{output}\n{log}"
    outputs = output.split(MARK)
    shown = [part for part in outputs if "Source:   git+https://" in part]
    assert len(shown) == 3
    first, broken, reverted = shown
    assert "Running:  commit " in first
    assert "Refused:  commit " in broken
    assert "placement.yaml:6: `spec.concurrency` must be an integer; got 'two'" in broken
    assert "Refused" not in reverted
    assert any("Ada: Change Placement default/smollm2" in part for part in outputs)
    assert outputs[-1].split()[1:] == [
        "model/smollm2",
        "unchanged",
        "placement/smollm2",
        "unchanged",
    ]
    assert "TOKEN" not in log + output
