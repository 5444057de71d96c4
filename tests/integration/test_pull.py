"""`covey pull` and `covey cache` as processes, against a hub; disks that are full or can't be written to."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from subprocess import PIPE

import pytest
from kit.cache import shared_cache
from kit.fleet import running_fleet, wait_until
from kit.gguf import Shape, build_model
from kit.gguf_projectors import build_projector
from kit.hub import Hub, running_hub
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MIB = 1024 * 1024
COVEY = (sys.executable, "-m", "covey")
# In a namespace of its own: a small file system in which the cache lies, and then a command.
SMALL_DISK = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
READ_ONLY = 'mount -t tmpfs tmpfs "$2" && mkdir "$2/cache" && mount -o remount,ro "$2" && shift 2 && exec "$@"'


@pytest.fixture(scope="module")
def weights() -> bytes:
    """A GGUF file of 4 MiB."""
    made = build_model(Shape(embedding=512, feed_forward=1024, vocabulary=2000, layers=1))
    return made.header + random.Random(7).randbytes(made.file_bytes - len(made.header))


@pytest.fixture(scope="module")
def hub(weights: bytes) -> Generator[Hub]:
    with running_hub() as running:
        running.push("org/model", {"weights.gguf": weights})
        running.hub.token = "hf_secretsecret"
        yield running


def environment_of(hub: Hub, home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_ENDPOINT": hub.base,
        "HF_TOKEN": "hf_secretsecret",
        "COVEY_CACHE": str(home / "disk" / "cache"),
    }


def covey(hub: Hub, home: Path, *words: str, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = environment_of(hub, home)
    return subprocess.run(
        [*within, *COVEY, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def inside(script: str, size: str, home: Path) -> tuple[str, ...]:
    (home / "disk").mkdir(exist_ok=True)
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", size, str(home / "disk"))


def test_a_source_is_pulled_once_listed_and_pruned(tmp_path: Path, hub: Hub, weights: bytes) -> None:
    source = "hf://org/model#weights.gguf"
    pulled = covey(hub, tmp_path, "pull", source)
    assert pulled.returncode == 0, pulled.stderr
    digest = hashlib.sha256(weights).hexdigest()
    said, path = pulled.stdout.splitlines()
    assert said == f"{source}: weights.gguf, {len(weights) / MIB:.1f} MiB, sha256 {digest}"
    assert Path(path).read_bytes() == weights
    sent = hub.store.state.sent_bytes
    assert covey(hub, tmp_path, "pull", source).returncode == 0
    assert hub.store.state.sent_bytes - sent <= MIB, "only a header is read again"
    listed = covey(hub, tmp_path, "cache", "ls").stdout
    assert source in listed
    assert covey(hub, tmp_path, "fit", source).returncode == 0
    assert "removed Model 'weights.gguf'" in covey(hub, tmp_path, "cache", "prune").stdout
    assert not Path(path).exists()
    everything = pulled.stdout + pulled.stderr + listed
    assert "secret" not in everything


def test_a_disk_without_room_is_told_before_the_first_byte(tmp_path: Path, hub: Hub) -> None:
    sent = hub.store.state.sent_bytes
    full = covey(hub, tmp_path, "pull", "hf://org/model#weights.gguf", within=inside(SMALL_DISK, "130m", tmp_path))
    assert full.returncode == 1
    assert "and 128.0 MiB to spare; " in full.stderr
    assert "`covey cache prune`" in full.stderr
    assert hub.store.state.sent_bytes - sent < 2 * MIB


def test_a_disk_that_fills_meanwhile_is_said_and_what_came_is_gone_on_with(tmp_path: Path, hub: Hub) -> None:
    """There was room when it began; another process took it, and gives it back."""
    faults = hub.store.faults
    faults.trickle_bytes, faults.trickle_seconds = 50_000, 0.15
    fill = """
        mount -t tmpfs -o size="$1" tmpfs "$2"; disk=$2; shift 2
        "$@" & pid=$!
        until [ -s "$(ls "$COVEY_CACHE"/partial/* 2>/dev/null | head -1)" ]; do sleep 0.05; done
        head -c 200m /dev/zero > "$disk/taken" 2>/dev/null
        wait $pid; status=$?
        du -b "$COVEY_CACHE"/partial/* | sort -n | tail -1 | cut -f1
        echo $status
        read -r again
        rm "$disk/taken"
        exec "$@"
    """
    command = [*inside(fill, "140m", tmp_path), *COVEY, "pull", "hf://org/model#weights.gguf"]
    with (
        (tmp_path / "said").open("w+") as said,
        subprocess.Popen(
            command, env=environment_of(hub, tmp_path), stdin=PIPE, stdout=PIPE, stderr=said, text=True
        ) as pulling,
    ):
        assert pulling.stdin is not None
        assert pulling.stdout is not None
        try:
            came_bytes, status = int(pulling.stdout.readline()), int(pulling.stdout.readline())
        finally:
            faults.trickle_bytes = 0
        pulling.communicate("again\n", timeout=120)
        said.seek(0)
        words = said.read()
    assert status == 1
    assert "'weights.gguf' needs" in words
    assert came_bytes > 100_000
    assert pulling.returncode == 0, words
    assert f"bytes={came_bytes}-" in [each.headers.get("Range", "") for each in hub.store.state.requests]


def test_a_cache_that_can_not_be_written_to_is_said(tmp_path: Path, hub: Hub) -> None:
    agent = ["agent", "--controller", "https://127.0.0.1:1", "--state", str(tmp_path / "state")]
    for words in (["pull", "hf://org/model#weights.gguf"], agent):
        refused = covey(hub, tmp_path, *words, within=inside(READ_ONLY, "1m", tmp_path))
        assert refused.returncode == 1
        assert "can't be used" in refused.stderr
        assert "Read-only file system" in refused.stderr
        assert "Traceback" not in refused.stderr
    for words in (["fit", "hf://org/model#weights.gguf"], ["cache", "ls"]):
        read = covey(hub, tmp_path, *words, within=inside(READ_ONLY, "1m", tmp_path))
        assert read.returncode == 0, read.stderr


MODEL = """apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {name: smollm2}
spec:
  tasks: [Chat]
  variants:
  - {name: v, format: Gguf, source: 'hf://org/smollm2#SmolLM2.gguf', engines: [LlamaServer]}
---
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {name: smollm2}
spec:
  modelRef: {name: smollm2}
  context: {tokens: 1024}
---
apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {name: seeing}
spec:
  tasks: [Chat, Vision]
  variants:
  - name: v
    format: Gguf
    source: 'hf://org/seeing#weights.gguf'
    engines: [LlamaServer]
    projector: {source: 'hf://org/seeing#eyes.gguf'}
"""


def test_a_model_of_a_hub_is_served_and_pinned_while_it_runs(tmp_path: Path, hub: Hub, weights: bytes) -> None:
    eyes = build_projector().write(tmp_path / "eyes.gguf").read_bytes()
    hub.push("org/seeing", {"weights.gguf": weights, "eyes.gguf": eyes})
    commit = hub.push("org/smollm2", {"SmolLM2.gguf": provide_real_parts().model.read_bytes()})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.yaml").write_text(MODEL)
    cache = ["--cache", str(shared_cache())]

    def pinned() -> str:
        listed = json.loads(covey(hub, tmp_path, "cache", "ls", "-o", "json", *cache).stdout)
        (found,) = (entry for entry in listed if "hf://org/smollm2#" in entry["source"])
        return found["pinnedBy"]

    environment = {"HF_ENDPOINT": hub.base, "HF_TOKEN": "hf_secretsecret"}
    with running_fleet(tmp_path / "models", environment=environment) as fleet:
        assert fleet.ask().status_code == 200
        (variant,) = json.loads(fleet.covey("get", "model/smollm2", "-o", "json").stdout)["status"]["variants"]
        assert variant["artifact"]["revision"] == commit
        assert pinned() == f"the agent of '{fleet.state / 'agent'}'"
        pulled = covey(hub, tmp_path, "pull", "smollm2", "--state", str(fleet.state), *cache)
        assert f"smollm2: SmolLM2.gguf, {98_362_432 / MIB:.1f} MiB" in pulled.stdout

        def pull_seeing() -> str:
            home = tmp_path / "home"
            return covey(hub, home, "pull", "model/seeing", "--state", str(fleet.state)).stdout

        wait_until(pull_seeing, "both headers of 'seeing' are read, and it is pulled")
        _, weights_path, said, eyes_path = pull_seeing().splitlines()
        assert said.startswith("model/seeing: eyes.gguf, ")
        assert said.endswith(f" sha256 {hashlib.sha256(eyes).hexdigest()}")
        assert (Path(weights_path).read_bytes(), Path(eyes_path).read_bytes()) == (weights, eyes)
        written = [path for path in fleet.state.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]
        assert written == []
    assert not pinned().startswith("the agent of '/tmp/cv")
