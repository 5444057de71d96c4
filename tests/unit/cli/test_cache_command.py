"""`covey cache`: what is there, what goes, what was changed."""

import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from covey.commands.cache import cache as command
from covey.errors import CommandError
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.pins import Pins
from covey_agent.artifacts.room import SPARE_BYTES
from covey_api.model import ArtifactFile
from kit.builders import artifact


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A model of 7 bytes used at 1000, and two files of 4 KiB: one used at 2000, a pinned one at 500."""
    made = Cache(tmp_path)
    made.add_reference(artifact(size_bytes=7), add(made, b"weights", "model", 1000))
    add(made, b"wheel" * 1000, "engine.whl", 2000)
    add(made, b"needed" * 1000, "needed.whl", 500)
    return made


def add(cache: Cache, content: bytes, name: str, used_at: float) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    cache.add_blob(sha256, content, name)
    os.utime(cache.stamps.path(sha256), (used_at, used_at))
    return sha256


@pytest.fixture
def pinned(cache: Cache) -> str:
    return hashlib.sha256(b"needed" * 1000).hexdigest()


def test_ls_lists_by_last_use_for_people_and_for_programs(cache: Cache, pinned: str) -> None:
    pins = Pins(cache.pins)
    pins.hold(frozenset((pinned,)))
    shown = run("ls", "--cache", str(cache.folder)).output.splitlines()
    assert shown[0].split() == ["KIND", "NAME", "SIZE", "USED", "PINNED", "BY", "SOURCE"]
    assert [line.split()[1] for line in shown[1:]] == ["engine.whl", artifact().name, "needed.whl"]
    found = json.loads(run("ls", "-o", "json", "--cache", str(cache.folder)).output)
    assert found[1]["source"] == artifact().source
    assert (found[2]["bytes"], found[2]["usedAt"], found[2]["digests"]) == (6000, 500, [pinned])
    assert found[2]["pinnedBy"] == f"process {os.getpid()}"
    pins.close()


def test_prune_removes_all_that_nobody_needs(cache: Cache, pinned: str) -> None:
    pins = Pins(cache.pins)
    pins.hold(frozenset((pinned,)))
    dry = run("prune", "--dry-run", "--cache", str(cache.folder)).output
    assert dry.splitlines()[-1] == "4.9 KiB would be free"
    assert len(Cache(cache.folder).digests()) == 4
    assert run("prune", "--cache", str(cache.folder)).output.splitlines() == [
        f"removed Model '{artifact().name}' (7 B)",
        "removed File 'engine.whl' (4.9 KiB)",
        "4.9 KiB are free",
    ]
    assert Cache(cache.folder).digests() == (pinned,)
    pins.close()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--keep", "6k"], {"engine.whl", artifact().name}),
        (["--keep", "12k"], {"engine.whl", "needed.whl", artifact().name}),
        (["--older-than", "1"], set[str]()),
        (["--older-than", "999999"], {"engine.whl", "needed.whl", artifact().name}),
    ],
)
def test_prune_keeps_as_much_as_it_is_told(cache: Cache, words: list[str], left: set[str]) -> None:
    run("prune", *words, "--cache", str(cache.folder))
    found = json.loads(run("ls", "-o", "json", "--cache", str(cache.folder)).output)
    assert {entry["name"] for entry in found} == left


def test_looking_makes_no_folder_and_removes_nothing(cache: Cache, tmp_path: Path) -> None:
    left = cache.blobs / f".{'a' * 64}.{1 << 30}"
    left.touch()
    for words in (["ls"], ["prune", "--dry-run"]):
        assert run(*words, "--cache", str(cache.folder)).exit_code == 0
        assert run(*words, "--cache", str(tmp_path / "none")).exit_code == 0
    assert left.exists()
    assert not (tmp_path / "none").exists()


def test_prune_takes_engines_only_when_told_and_nobody_uses_the_cache(cache: Cache) -> None:
    (cache.envs / ("e" * 64)).mkdir()
    run("prune", "--cache", str(cache.folder))
    assert (cache.envs / ("e" * 64)).is_dir()
    pins = Pins(cache.pins)
    run("prune", "--engines", "--cache", str(cache.folder))
    assert (cache.envs / ("e" * 64)).is_dir()
    pins.close()
    run("prune", "--engines", "--cache", str(cache.folder))
    assert not (cache.envs / ("e" * 64)).exists()


def test_verify_finds_what_was_changed_though_its_time_was_not(cache: Cache, pinned: str) -> None:
    assert run("verify", "--cache", str(cache.folder)).output.endswith(": 0 changed\n")
    before = (cache.blobs / pinned).stat()
    (cache.blobs / pinned).write_bytes(b"NEEDED" * 1000)
    os.utime(cache.blobs / pinned, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = run("verify", "--cache", str(cache.folder))
    assert result.exit_code == 1
    assert result.output.startswith(f"'needed.whl' was changed on the disk; removed blob {pinned}\n3 files")
    assert not (cache.blobs / pinned).exists()
    assert run("verify", "--cache", str(cache.folder)).exit_code == 0


def test_verify_reads_the_files_of_sets_that_are_no_links(cache: Cache) -> None:
    content = {"config.json": b"{}" * 50, "model.safetensors": b"weights " * 50}
    blobs = {name: cache.blobs / add(cache, text, name, 3000) for name, text in content.items()}
    files = tuple(
        ArtifactFile(name=name, size_bytes=len(content[name]), sha256=blob.name) for name, blob in blobs.items()
    )
    made = artifact(size_bytes=500, sha256="d" * 64, name="folder", files=files)
    folder = cache.install_set(made, blobs)
    assert "5 files" in run("verify", "--cache", str(cache.folder)).output
    blobs["model.safetensors"].unlink()
    assert "5 files" in run("verify", "--cache", str(cache.folder)).output
    (folder / "config.json").unlink()
    (folder / "config.json").write_bytes(content["config.json"])
    assert "6 files" in run("verify", "--cache", str(cache.folder)).output
    (folder / "config.json").write_bytes(content["config.json"].replace(b"{", b"["))
    result = run("verify", "--cache", str(cache.folder))
    assert result.exit_code == 1
    assert result.output.startswith(f"'config.json' was changed on the disk; removed '{folder / 'config.json'}'\n")
    assert cache.find_artifact(made) is None
    assert blobs["config.json"].exists()
    assert run("verify", "--cache", str(cache.folder)).exit_code == 0


def test_verify_says_what_it_could_not_remove_and_leaves_out_what_others_did(
    cache: Cache, pinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = hashlib.sha256(b"wheel" * 1000).hexdigest()

    def read(path: Path, _stopping: object) -> str:
        if path.name == other:
            path.unlink()
        if path.name in (pinned, other):
            code = errno.EIO if path.exists() else errno.ENOENT
            raise OSError(code, os.strerror(code))
        return path.name

    def refuse(_cache: Cache, _sha256: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("covey_agent.artifacts.verifying.hash_file", read)
    monkeypatch.setattr(Cache, "remove_blob", refuse)
    result = run("verify", "--cache", str(cache.folder))
    assert result.exit_code == 1
    assert f"'needed.whl' can't be read, and stays: blob {pinned}\n2 files" in result.output
    assert "removed blob" not in result.output


def test_what_keeps_all_files_from_being_read_is_said_and_removes_none(
    cache: Cache, pinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_path: Path, _stopping: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("covey_agent.artifacts.verifying.hash_file", read)
    with pytest.raises(CommandError, match=r"can't be read in .*: Too many open files"):
        run("verify", "--cache", str(cache.folder))
    assert pinned in Cache(cache.folder).digests()


def test_a_folder_that_is_none_and_a_size_that_is_none_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="can't be used: Not a directory"):
        run("ls", "--cache", str(tmp_path / "file" / "cache"))
    with pytest.raises(CommandError, match="`--keep`: quantity must be digits"):
        run("prune", "--keep", "much", "--cache", str(tmp_path))


def test_what_was_added_is_named_by_its_digest_and_stays_until_it_is_released(cache: Cache, tmp_path: Path) -> None:
    weights = tmp_path / "my merge.gguf"
    weights.write_bytes(b"merged")
    digest = hashlib.sha256(b"merged").hexdigest()
    where = ("--cache", str(cache.folder))
    added = run("add", str(weights), *where)
    assert added.stdout == f"store://{digest}#my merge.gguf\n"
    assert run("add", str(weights), *where).stdout == added.stdout, "twice is once"
    weights.write_bytes(b"others")
    (entry,) = [each for each in json.loads(run("ls", "-o", "json", *where).output) if each["name"] == weights.name]
    assert (entry["kind"], entry["pinnedBy"], entry["bytes"]) == ("Model", "whoever put it here", 6)
    assert entry["source"] == f"store://{digest}#my merge.gguf"
    assert weights.name not in run("prune", *where).output
    assert run("release", added.stdout.strip(), *where).output == f"released {added.stdout}"
    with pytest.raises(CommandError, match="was not put into the cache"):
        run("release", digest, *where)
    with pytest.raises(CommandError, match="SOURCE must be 'store://SHA256' or a digest; got 'merged'"):
        run("release", "merged", *where)
    assert f"removed Model '{weights.name}'" in run("prune", *where).output


def test_a_folder_is_added_as_a_set_with_the_list_of_its_files(cache: Cache, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name, content in (("config.json", b"{}"), ("model.safetensors", b"weights"), ("train.py", b"no")):
        (folder / name).write_bytes(content)
    listed = f"{hashlib.sha256(b'{}').hexdigest()}  config.json\n{hashlib.sha256(b'weights').hexdigest()}"
    listed += "  model.safetensors\n"
    digest = hashlib.sha256(listed.encode()).hexdigest()
    where = ("--cache", str(cache.folder))
    (added,) = json.loads(run("add", str(folder), "-o", "json", *where).stdout)
    assert added == {"source": f"store://{digest}#checkpoint", "sha256": digest, "bytes": 9}
    assert (cache.blobs / digest).read_text() == listed
    assert run("prune", *where).output.count("removed Model 'checkpoint'") == 0
    run("release", digest, *where)
    run("prune", *where)
    assert not (cache.blobs / digest).exists()
    assert not (cache.sets / digest).exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("a#b.gguf", b"x", "can't be named by a source"), ("empty.gguf", b"", "is empty"), ("d", None, "must hold 1 to")],
)
def test_what_cant_be_added_is_said_so(
    cache: Cache, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    before = set(cache.blobs.iterdir())
    with pytest.raises(CommandError, match=words):
        run("add", str(path), "--cache", str(cache.folder))
    assert not [each for each in cache.partial.iterdir() if "added" in each.name]
    assert set(cache.blobs.iterdir()) == before


def test_what_is_there_already_is_added_without_room_for_it(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other, folder = tmp_path / "here.gguf", tmp_path / "other.gguf", tmp_path / "checkpoint"
    folder.mkdir()
    for path, content in (
        *((here, b"needed" * 1000), (other, b"lacked" * 1000)),
        *((folder / "model.safetensors", b"needed" * 1000), (folder / "config.json", b"{}")),
    ):
        path.write_bytes(content)
    free = shutil.disk_usage(tmp_path)._replace(free=SPARE_BYTES + 5999)

    def observe(folder: Path) -> object:
        return free

    monkeypatch.setattr(shutil, "disk_usage", observe)
    where = ("--cache", str(cache.folder))
    digest = hashlib.sha256(b"needed" * 1000).hexdigest()
    assert run("add", str(here), *where).stdout == f"store://{digest}#here.gguf\n"
    (added,) = json.loads(run("add", str(folder), "-o", "json", *where).stdout)
    assert added["bytes"] == 6002
    with pytest.raises(CommandError, match=r"'other.gguf' needs 5.9 KiB"):
        run("add", str(other), *where)
    assert digest in {each.name for each in cache.blobs.iterdir()}
    run("prune", *where)
    assert (cache.blobs / digest).exists(), "by hand until a person lets go"


def test_what_was_added_before_a_failure_is_named(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"merged")
    (tmp_path / "empty.gguf").touch()
    words = ("add", str(tmp_path / "a.gguf"), str(tmp_path / "empty.gguf"), "--cache", str(cache.folder))
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, CommandError)
    assert done.stdout == f"store://{hashlib.sha256(b'merged').hexdigest()}#a.gguf\n"


def test_an_agents_cache_finds_what_others_put_there_and_take(cache: Cache, tmp_path: Path) -> None:
    running = Cache(cache.folder)
    weights = tmp_path / "a.gguf"
    weights.write_bytes(b"merged")
    digest = hashlib.sha256(b"merged").hexdigest()
    assert digest not in running.digests()
    run("add", str(weights), "--cache", str(cache.folder))
    assert digest in running.digests()
    run("release", digest, "--cache", str(cache.folder))
    run("prune", "--cache", str(cache.folder))
    assert digest not in running.digests()


def test_what_is_put_there_within_a_tick_of_the_disks_clock_is_found(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = cache.blobs.stat().st_mtime_ns
    monkeypatch.setattr(time, "time_ns", lambda: tick + 1_000_000)
    running = Cache(cache.folder)
    sha256 = add(cache, b"merged", "merged.gguf", 1000)
    os.utime(cache.blobs, ns=(tick, tick))
    assert sha256 in running.digests()
    monkeypatch.setattr(time, "time_ns", lambda: tick + 1_000_000_000)
    assert sha256 in running.digests()
    later = add(cache, b"later", "later.gguf", 1000)
    os.utime(cache.blobs, ns=(tick, tick))
    assert later not in running.digests(), "nothing changed for a second: it isn't read again"
