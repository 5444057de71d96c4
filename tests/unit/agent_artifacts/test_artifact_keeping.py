"""What stays in a cache and what goes: verified at a glance, pinned by who needs it, evicted by last use."""

import asyncio
import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache, FileDigest, Reference, reference_key
from covey_agent.artifacts.entries import EntryKind, observe_entries
from covey_agent.artifacts.eviction import choose_evictions, evict
from covey_agent.artifacts.pins import Pins, observe_pins, sweep_pins
from covey_agent.artifacts.removal import remove_entry
from covey_agent.artifacts.stamps import Stamp, Stamps
from covey_agent.artifacts.verifying import find_verified, find_verified_artifact
from covey_agent.main import needs_of
from covey_api.model import ArtifactFile, ResolvedArtifact
from kit.builders import artifact, instance
from pydantic import ValidationError

HOUR = 3600.0


def install(cache: Cache, content: bytes, name: str = "", used_at: float | None = None) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    cache.add_blob(sha256, content, name)
    if used_at is not None:
        os.utime(cache.stamps.path(sha256), (used_at, used_at))
    return sha256


def verified(cache: Cache, sha256: str, size_bytes: int) -> Path | None:
    return asyncio.run(find_verified(cache, sha256, size_bytes))


def make_set(cache: Cache, contents: dict[str, bytes], name: str = "model", sha256: str = "a" * 64) -> ResolvedArtifact:
    blobs = {name: cache.blobs / install(cache, content, name) for name, content in contents.items()}
    files = tuple(
        ArtifactFile(name=name, size_bytes=len(contents[name]), sha256=blob.name) for name, blob in blobs.items()
    )
    made = ResolvedArtifact(
        source=f"hf://org/{name}", name=name, size_bytes=sum(map(len, contents.values())), sha256=sha256, files=files
    )
    cache.install_set(made, blobs)
    return made


def names(cache: Cache) -> set[str]:
    return {entry.name for entry in observe_entries(cache)}


# Verified once


def test_a_blob_that_nothing_touched_is_not_read_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    before = (cache.blobs / sha256).stat()
    # The same size, time and inode: whoever forges all three could as well forge what is kept of them.
    (cache.blobs / sha256).write_bytes(b"WEIGHTS")
    os.utime(cache.blobs / sha256, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verified(cache, sha256, 7) == cache.blobs / sha256


def test_a_blob_that_changed_on_the_disk_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    (cache.blobs / sha256).write_bytes(b"WEIGHTS")
    assert verified(cache, sha256, 7) is None
    assert not (cache.blobs / sha256).exists()
    assert "was changed on the disk" in caplog.text


def test_a_cache_of_a_version_without_stamps_is_read_once_and_believed(tmp_path: Path) -> None:
    old = Cache(tmp_path)
    wanted, sha256 = artifact(size_bytes=7), install(old, b"weights")
    old.add_reference(wanted, sha256)
    for name in ("stamps", "pins", "sets"):
        for path in (tmp_path / name).iterdir():
            path.unlink()
        (tmp_path / name).rmdir()
    cache = Cache(tmp_path)
    assert cache.digests() == tuple(sorted((sha256, wanted.digest)))
    assert cache.stamps.find(sha256) is None
    assert asyncio.run(find_verified_artifact(cache, wanted)) == cache.blobs / sha256
    assert cache.stamps.matches(sha256, cache.blobs / sha256)


def test_a_link_in_the_place_of_a_blob_is_removed_and_never_followed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    outside = tmp_path / "outside"
    outside.write_bytes(b"private")
    sha256 = hashlib.sha256(b"private").hexdigest()
    (cache.blobs / sha256).symlink_to(outside)
    assert verified(cache, sha256, 7) is None
    assert not (cache.blobs / sha256).is_symlink()
    assert outside.read_bytes() == b"private"


def test_a_set_is_links_to_blobs_and_one_changed_file_spoils_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = make_set(cache, {"config.json": b"{}", "model.safetensors": b"weights"})
    folder = asyncio.run(find_verified_artifact(cache, made))
    assert folder is not None
    assert folder == cache.sets / ("a" * 64)
    assert (folder / "config.json").stat().st_nlink == 2
    assert Cache(tmp_path).digests() == cache.digests()
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    assert asyncio.run(find_verified_artifact(cache, made)) is None


def test_a_set_with_a_link_that_leads_out_counts_for_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    made = make_set(cache, {"config.json": b"{}", "model.safetensors": b"weights"})
    folder = cache.sets / ("a" * 64)
    (tmp_path / "outside").write_bytes(b"private")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "outside")
    assert cache.find_artifact(made) is None
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert cache.find_artifact(made) is None
    blobs = {file.name: cache.blobs / file.sha256 for file in made.files}
    assert not cache.install_set(made, blobs).is_symlink()
    assert (tmp_path / "outside").read_bytes() == b"private"


@pytest.mark.parametrize("name", ["/abs/x", "../../x", "..", ".", "...", "", "a/b", "a\nb", "a\x7fb", "x" * 256])
def test_a_file_name_that_leads_out_is_refused_and_never_linked(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError):
        ArtifactFile(name=name, size_bytes=7, sha256="b" * 64)
    for fine in ("config.json", ".gitignore", "..a", "a b", "modèle.gguf", "a..b", "tokenizer.json."):
        assert ArtifactFile(name=fine, size_bytes=7, sha256="b" * 64).name == fine


@pytest.mark.parametrize("name", ["out", "../../out"])
def test_a_kept_name_that_leads_out_is_not_linked(tmp_path: Path, name: str) -> None:
    cache = Cache(tmp_path / "cache")
    blob = cache.blobs / install(cache, b"weights")
    leads = str(tmp_path / name) if name == "out" else name
    file = ArtifactFile.model_construct(name=leads, size_bytes=7, sha256=blob.name)
    made = artifact(sha256="a" * 64, size_bytes=7).model_copy(update={"files": (file,)})
    with pytest.raises(OSError, match="leads out of its folder"):
        cache.install_set(made, {leads: blob})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    assert list(cache.sets.iterdir()) == []
    assert cache.find_artifact(made) is None


# Pinned


def test_a_pin_counts_while_its_process_lives_and_no_longer(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    pins = Pins(cache.pins)
    pins.hold(frozenset(("d" * 64,)))
    assert observe_pins(cache.pins).by_digest == {"d" * 64: f"process {os.getpid()}"}
    pins.hold(frozenset())
    assert observe_pins(cache.pins).by_digest == {}
    assert len(observe_pins(cache.pins).users) == 1
    pins.close()
    assert observe_pins(cache.pins).users == ()
    sweep_pins(cache.pins)
    assert list(cache.pins.iterdir()) == []


def test_an_agents_pins_outlive_it_with_its_engines(tmp_path: Path) -> None:
    cache, members = Cache(tmp_path / "cache"), tmp_path / "agent" / "members"
    (members / "one").mkdir(parents=True)
    pins = Pins(cache.pins, members)
    pins.hold(frozenset(("d" * 64,)))
    pins.close()
    assert observe_pins(cache.pins).by_digest == {}
    # As a keeper holds it, in whatever process.
    keeper = os.open(members / "one" / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(keeper, fcntl.LOCK_EX)
    assert observe_pins(cache.pins).by_digest == {"d" * 64: f"the agent of '{tmp_path / 'agent'}'"}
    sweep_pins(cache.pins)
    again = Pins(cache.pins, members)
    assert observe_pins(cache.pins).by_digest.keys() == {"d" * 64}
    again.close()
    os.close(keeper)


def test_a_pin_of_a_process_that_was_killed_counts_for_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    code = (
        "import os, signal, sys; from pathlib import Path; from covey_agent.artifacts.pins import Pins;"
        "p = Pins(Path(sys.argv[1])); p.hold(frozenset(('d' * 64,))); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(cache.pins)], check=False, timeout=60)
    assert list(cache.pins.glob("*.json"))
    assert observe_pins(cache.pins).users == ()


def test_pins_below_a_folder_that_cannot_be_looked_into_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, members = Cache(tmp_path / "cache"), tmp_path / "agent" / "members"
    pins = Pins(cache.pins, members)
    pins.hold(frozenset(("d" * 64,)))
    pins.close()
    look = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == members:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert observe_pins(cache.pins).by_digest.keys() == {"d" * 64}
    sweep_pins(cache.pins)
    assert observe_pins(cache.pins).by_digest.keys() == {"d" * 64}


def test_a_list_that_the_disk_keeps_costs_a_warning_and_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another user, in a folder where each may remove his own alone."""
    cache = Cache(tmp_path)
    Pins(cache.pins, tmp_path / "members").close()

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        sweep_pins(cache.pins)
    assert "is kept: Operation not permitted" in caplog.text
    sweep_pins(cache.pins)
    assert list(cache.pins.iterdir()) == []


def test_a_list_whose_process_starts_while_others_sweep_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, members = Cache(tmp_path / "cache"), tmp_path / "agent" / "members"
    Pins(cache.pins, members).close()
    (lock,) = cache.pins.glob("*.lock")
    lock_file = fcntl.flock

    def sweep_and_lock(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        sweep_pins(cache.pins)
        assert not lock.exists()
        lock_file(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_and_lock)
    pins = Pins(cache.pins, members)
    pins.hold(frozenset(("d" * 64,)))
    sweep_pins(cache.pins)
    assert observe_pins(cache.pins).by_digest.keys() == {"d" * 64}
    pins.close()


# Evicted


def test_entries_tell_models_files_engines_and_broken_downloads_by_last_use(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    wanted = artifact(size_bytes=7)
    cache.add_reference(wanted, install(cache, b"weights", used_at=3000))
    install(cache, b"a wheel", "engine-1.0.whl", used_at=2000)
    make_set(cache, {"config.json": b"{}", "model.safetensors": b"others"})
    partial = cache.partial / ("c" * 64)
    partial.write_bytes(b"x" * 10_000)
    os.utime(partial, (1000, 1000))
    (cache.envs / ("e" * 64) / "packages").mkdir(parents=True)
    (cache.envs / ("e" * 64) / "complete").write_text("built-1.0.whl\n")
    entries = observe_entries(cache)
    found = {entry.name: entry for entry in entries}
    assert {name: entry.kind for name, entry in found.items()} == {
        "model": EntryKind.MODEL,
        wanted.name: EntryKind.MODEL,
        "c" * 64: EntryKind.PARTIAL,
        "built-1.0.whl": EntryKind.ENGINE,
        "engine-1.0.whl": EntryKind.FILE,
    }
    assert found["model"].size_bytes == 8
    assert [entry.used_at for entry in entries] == sorted((entry.used_at for entry in entries), reverse=True)
    assert found[wanted.name].source == wanted.source
    assert found["c" * 64].size_bytes >= 10_000


def test_what_others_remove_while_it_is_looked_at_is_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    gone = install(cache, b"a wheel", "gone.whl")
    install(cache, b"another", "stays.whl")
    make_set(cache, {"config.json": b"{}", "model.safetensors": b"others"})
    find = Stamps.find

    def find_and_remove(stamps: Stamps, sha256: str) -> Stamp | None:
        found = find(stamps, sha256)
        (cache.blobs / gone).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Stamps, "find", find_and_remove)
    assert names(cache) == {"stays.whl", "model"}


def test_a_blob_that_cannot_be_read_is_dropped_unless_no_file_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    cache.stamps.remove(sha256)

    def read_with(code: int) -> Path | None:
        def fail(_path: Path, _stopping: object) -> str:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("covey_agent.artifacts.verifying.hash_file", fail)
        return verified(cache, sha256, 7)

    with pytest.raises(OSError, match="Too many open files"):
        read_with(errno.EMFILE)
    assert read_with(errno.ENOENT) is None
    assert (cache.blobs / sha256).exists()
    assert read_with(errno.EIO) is None
    assert not (cache.blobs / sha256).exists()


def test_what_was_used_longest_ago_goes_first_and_pins_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for index, name in enumerate(("old", "pinned", "middle", "new")):
        install(cache, name.encode() * 1000, name, used_at=1000.0 + index)
    pins = Pins(cache.pins)
    pins.hold(frozenset((hashlib.sha256(b"pinned" * 1000).hexdigest(),)))
    chosen = choose_evictions(observe_entries(cache), 4000, 1e9)
    assert [entry.name for entry in chosen] == ["old", "middle"]
    assert choose_evictions(observe_entries(cache), 100_000, 1e9) == [], "nothing is lost for nothing"
    pins.close()


def test_eviction_makes_room_and_the_cache_forgets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    wanted = artifact(size_bytes=7)
    cache.add_reference(wanted, install(cache, b"weights", used_at=1000))
    made = make_set(cache, {"config.json": b"{}", "model.safetensors": b"others"})
    held = install(cache, b"held", "held", used_at=900)

    async def scenario() -> None:
        with cache.room.hold([held]):
            await evict(cache, 5, "wanted.gguf")

    asyncio.run(scenario())
    assert cache.find_artifact(wanted) is None
    assert wanted.digest not in cache.digests()
    assert made.digest in cache.digests()
    assert held in cache.digests()
    assert "to make room for 'wanted.gguf'" in caplog.text
    asyncio.run(evict(cache, 10, "wanted.gguf"))
    assert names(cache) == set()
    assert list((tmp_path / "refs").iterdir()) == list((tmp_path / "stamps").iterdir()) == []


def test_a_file_that_two_sets_share_stays_with_the_one_that_runs(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    make_set(cache, {"tokenizer.json": b"shared", "model.safetensors": b"one"}, "a-first", "a" * 64)
    running = make_set(cache, {"tokenizer.json": b"shared", "model.safetensors": b"two"}, "b-second", "b" * 64)
    pins = Pins(cache.pins)
    pins.hold(frozenset(needs_of(instance(artifact=running).spec)))
    found = {entry.name: entry for entry in observe_entries(cache)}
    assert (found["a-first"].size_bytes, found["a-first"].pinned_by) == (len(b"one"), "")
    assert found["b-second"].pinned_by
    make_set(cache, {"tokenizer.json": b"shared"}, "c-third", "c" * 64)
    asyncio.run(evict(cache, 3, "wanted"))
    assert names(cache) == {"b-second", "c-third"}, "what would give nothing back stays"
    for file in running.files:
        assert cache.stamps.matches(file.sha256, cache.blobs / file.sha256)
    assert asyncio.run(find_verified_artifact(Cache(tmp_path), running)) is not None
    pins.close()


def test_removing_an_entry_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"private")
    made = make_set(cache, {"config.json": b"{}"})
    (cache.sets / (made.sha256 or "") / "link").symlink_to(tmp_path / "outside")
    for entry in observe_entries(cache):
        assert remove_entry(cache, entry)
    assert not (cache.sets / (made.sha256 or "")).exists()
    assert (tmp_path / "outside" / "file").read_bytes() == b"private"


def test_a_broken_download_of_the_last_hour_is_left_to_go_on(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    partial = cache.partial / ("c" * 64)
    partial.write_bytes(b"x" * 4096)
    (entry,) = observe_entries(cache)
    assert choose_evictions([entry], 1, entry.used_at + 0.5 * HOUR) == []
    assert choose_evictions([entry], 1, entry.used_at + 1.5 * HOUR) == [entry]
    with partial.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert observe_entries(cache)[0].pinned_by


def test_records_of_an_older_version_are_read(tmp_path: Path) -> None:
    """As version 0.1.0 wrote them: without a revision."""
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    wanted = artifact(size_bytes=7)
    text = Reference(artifact=wanted, blob=sha256).to_json()
    assert "revision" not in text
    (tmp_path / "refs" / f"{reference_key(wanted)}.json").write_text(text)
    local = FileDigest(path="/none", size_bytes=1, modified_ns=1, inode=1, sha256=sha256)
    (tmp_path / "files" / "a.json").write_text(local.to_json())
    assert Cache(tmp_path).find_source(wanted.source, "") is not None


def test_what_came_to_be_needed_since_it_was_looked_at_stays_whole(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = make_set(cache, {"config.json": b"{}", "model.safetensors": b"weights"})
    (entry,) = observe_entries(cache)
    pins = Pins(cache.pins)
    pins.hold(frozenset((made.digest,)))
    assert not remove_entry(cache, entry), "another process pinned it"
    pins.close()
    assert not remove_entry(cache, entry, lambda: frozenset((made.files[1].sha256,))), "a fetch of it began"
    assert asyncio.run(find_verified_artifact(cache, made)) is not None
    assert all(verified(cache, file.sha256, file.size_bytes) for file in made.files)
    assert remove_entry(cache, entry)
    assert names(cache) == set()


def test_what_another_process_removed_is_no_longer_known(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path), Cache(tmp_path)
    made = make_set(cache, {"config.json": b"{}", "model.safetensors": b"weights"})
    assert cache.find_resolved(made.source, "") is not None
    for entry in observe_entries(other):
        assert remove_entry(other, entry)
    assert cache.find_resolved(made.source, "") is None
    assert cache.find_resolved(made.source, "") is None


def test_a_broken_download_that_is_gone_on_with_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    partial = cache.partial / ("c" * 64)
    partial.write_bytes(b"x" * 4096)
    (entry,) = observe_entries(cache)
    with partial.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not remove_entry(cache, entry)
    assert partial.exists()
    assert observe_entries(cache, frozenset((partial.name,)))[0].pinned_by
    assert remove_entry(cache, entry)
    assert not partial.exists()


def test_what_a_removal_or_a_set_left_when_its_process_ended_is_swept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    for folder in (cache.sets, cache.envs, cache.blobs):
        (folder / f".{'a' * 64}.{ended.pid}").mkdir()
        (folder / f".{'a' * 64}.{ended.pid}" / "file").write_bytes(b"half")
    again = Cache(tmp_path)
    assert [*again.sets.iterdir(), *again.envs.iterdir(), *again.blobs.iterdir()] == []
