"""A git source on real repositories behind a real HTTPS server: what people and servers do, and what comes of it."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
from covey_api.meta import ObjectMeta
from covey_api.node import Node
from covey_api.placement import Placement
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.folder import MAX_FILE_BYTES
from covey_controller.stores.files.store import FilesStore, clone_path, store_paths
from covey_controller.stores.git import clone as clone_module
from covey_controller.stores.git.address import parse_git_address
from covey_controller.stores.git.settings import GitSettings
from kit import builders
from kit.documents import model_key, model_yaml, node_key, placement_key, placement_yaml, running_store
from kit.git import ENVIRONMENT, GitServer, Repository, git, git_server
from kit.processes import processes_of, wait_for

pytestmark = pytest.mark.integration

# A busy machine needs longer than the store does.
SOON_SECONDS = 30.0
# Looks that find nothing: longer than two polls.
QUIET_SECONDS = 1.0
POLL_SECONDS = 0.3
FLEET: dict[str, str | bytes | None] = {"fleet/model.yaml": model_yaml(), "fleet/placement.yaml": placement_yaml()}
BOTH = {model_key(), placement_key()}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with a Model and a Placement in the folder `fleet`, beside a README."""
    made = Repository(tmp_path / "served")
    made.push({**FLEET, "README.md": "# A fleet\n"})
    return made


@pytest.fixture
def server(repository: Repository) -> Generator[GitServer]:
    with git_server(repository.bare.parent) as serving:
        yield serving


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "controller"


def settings(source: str, environment: dict[str, str] | None = None, *, pushes: bool = False) -> GitSettings:
    return GitSettings(
        parse_git_address(source), environment or ENVIRONMENT, lambda: 1.0, pushes=pushes, poll_seconds=POLL_SECONDS
    )


def followed(server: GitServer, *, pushes: bool = False, **variables: str) -> GitSettings:
    return settings(server.url("#fleet@main"), server.environment | variables, pushes=pushes)


def local(repository: Repository, rest: str = "#fleet@main", *, pushes: bool = False) -> GitSettings:
    return settings(repository.url + rest, pushes=pushes)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def until(holds: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    try:
        async with asyncio.timeout(SOON_SECONDS):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {SOON_SECONDS} s; found {what()}")


async def applied(store: FilesStore, commit: str) -> None:
    await until(lambda: store.source_state().applied == commit, store.source_state)


async def replicas(store: FilesStore) -> int:
    found = (await store.list_objects())[placement_key()]
    assert isinstance(found, Placement)
    return found.spec.replicas


async def noticed(store: FilesStore, *words: str) -> None:
    def holds() -> bool:
        return all(any(word in notice for notice in store.source_state().notices) for word in words)

    await until(holds, store.source_state)


def contents_below(folder: Path) -> Generator[bytes]:
    """Of every file, beside a git that makes and removes some."""
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield Path(at, name).read_bytes()


async def assert_quiet(store: FilesStore) -> None:
    before = await store.list_objects()
    assert not await store.wait_changed(QUIET_SECONDS)
    assert await store.list_objects() == before


@contextlib.asynccontextmanager
async def following(source: GitSettings, state: Path, commit: str = "") -> AsyncGenerator[FilesStore]:
    """A store that leads, once it runs a commit."""
    async with running_store(source, state) as store:
        if commit:
            await applied(store, commit)
        yield store


def head(repository: Repository) -> str:
    return git(repository.bare, "rev-parse", "main")[:12]


def test_commits_are_followed_over_https(repository: Repository, server: GitServer, state: Path) -> None:
    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            assert set(await store.list_objects()) == BOTH
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await applied(store, commit)
            assert await replicas(store) == 2
            state_now = store.source_state()
            assert (state_now.wanted, state_now.errors, state_now.notices) == (commit, (), ())
            await assert_quiet(store)

    run(scenario())


@pytest.mark.parametrize("rest", ["", "#fleet", "#@main", "#fleet@v1", "#fleet@refs/heads/main", "#fleet/model.yaml"])
def test_path_and_ref_may_be_left_out_or_name_anything(repository: Repository, state: Path, rest: str) -> None:
    git(repository.work, "tag", "-a", "-m", "first", "v1")
    git(repository.work, "push", "--quiet", "origin", "v1")

    async def scenario() -> None:
        async with following(local(repository, rest), state, head(repository)) as store:
            assert set(await store.list_objects()) == ({model_key()} if rest.endswith(".yaml") else BOTH)

    run(scenario())


def test_a_commit_is_followed_by_its_name_for_ever(repository: Repository, state: Path) -> None:
    commit = git(repository.bare, "rev-parse", "main")

    async def scenario() -> None:
        async with following(local(repository, f"#fleet@{commit}"), state, commit[:12]) as store:
            repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await assert_quiet(store)
            with pytest.raises(InvalidSet, match="which is no branch"):
                await store.apply_documents(placement_yaml("other"), "x")

    run(scenario())


def test_an_edit_of_a_clone_by_its_owner_is_followed_when_committed(repository: Repository, state: Path) -> None:
    source = settings(f"git+file://{repository.work}#fleet")

    async def scenario() -> None:
        async with following(source, state, head(repository)) as store:
            (repository.work / "fleet" / "placement.yaml").write_text(placement_yaml(replicas=2))
            await assert_quiet(store)
            commit = repository.commit({"fleet/placement.yaml": placement_yaml(replicas=3)})
            await applied(store, commit[:12])
            assert await replicas(store) == 3

    run(scenario())


def test_a_broken_commit_changes_nothing_and_is_explained(
    repository: Repository, server: GitServer, state: Path
) -> None:
    async def scenario() -> None:
        good = head(repository)
        async with following(followed(server), state, good) as store:
            broken = placement_yaml().replace("replicas: 1", "replicas: many")
            bad = repository.push({"fleet/placement.yaml": broken, "fleet/model.yaml": model_yaml("other")})
            await until(lambda: store.source_state().wanted == bad)
            await until(lambda: store.source_state().errors)
            found = store.source_state()
            assert found.applied == good
            (error,) = found.errors
            assert (error.file, error.line, error.field) == ("placement.yaml", 6, "spec.replicas")
            assert "must be an integer" in error.message
            assert set(await store.list_objects()) == BOTH
        # It is as good after a restart, with nobody to ask.
        server.knobs.login = ("nobody", "knows")
        async with running_store(followed(server), state) as store:
            await until(lambda: store.source_state().errors)
            assert (store.source_state().applied, store.source_state().wanted) == (good, bad)
            assert set(await store.list_objects()) == BOTH
            server.knobs.login = None
            fixed = repository.push({"fleet/placement.yaml": placement_yaml(replicas=4)})
            await applied(store, fixed)
            assert set(await store.list_objects()) == {model_key("other"), placement_key()}
            assert store.source_state().errors == ()

    run(scenario())


def test_a_force_push_is_followed(repository: Repository, server: GitServer, state: Path) -> None:
    async def scenario() -> None:
        first = git(repository.work, "rev-parse", "HEAD")
        commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
        async with following(followed(server), state, commit) as store:
            git(repository.work, "reset", "--quiet", "--hard", first)
            other = repository.commit({"fleet/placement.yaml": placement_yaml(replicas=5)}, "Another history")
            repository.send("--force")
            await applied(store, other[:12])
            assert await replicas(store) == 5
            # Also one that shares nothing with what was there.
            git(repository.work, "checkout", "--quiet", "--orphan", "anew")
            orphan = repository.commit({"fleet/placement.yaml": placement_yaml(replicas=6)}, "No history")
            repository.send("--force")
            await applied(store, orphan[:12])
            assert await replicas(store) == 6

    run(scenario())


def test_a_commit_with_an_older_date_is_followed(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(local(repository), state, head(repository)) as store:
            old = {"GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z"}
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)}, "From 2001", **old)
            await applied(store, commit)
            assert await replicas(store) == 2
            # Going back to what was there before is a wish as any other.
            first = git(repository.work, "rev-parse", "HEAD~1")
            git(repository.work, "reset", "--quiet", "--hard", first)
            repository.send("--force")
            await applied(store, first[:12])
            assert await replicas(store) == 1

    run(scenario())


def test_a_branch_that_is_gone_changes_nothing_until_it_is_back(
    repository: Repository, server: GitServer, state: Path
) -> None:
    async def scenario() -> None:
        good = head(repository)
        async with following(followed(server), state, good) as store:
            git(repository.bare, "branch", "-m", "main", "trunk")
            await noticed(store, "there is no branch or tag 'main' in it. Nothing is changed or deleted for that")
            await assert_quiet(store)
            git(repository.bare, "branch", "-m", "trunk", "main")
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await applied(store, commit)
            assert store.source_state().notices == ()

    run(scenario())


def test_a_path_that_is_gone_or_empty_deletes_nothing_unless_allowed(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        good = head(repository)
        async with following(local(repository), state, good) as store:
            gone = repository.push({"fleet/model.yaml": None, "fleet/placement.yaml": None})
            await until(lambda: store.source_state().wanted == gone)
            await noticed(store, f"' at commit {gone} is missing: nothing was deleted, what ran keeps running")
            assert store.source_state().notices[0].startswith("path 'fleet' of source 'git+file://")
            await assert_quiet(store)
            assert store.source_state().applied == good
            noted = repository.push({"fleet/notes.txt": "nothing here"})
            await until(lambda: store.source_state().wanted == noted)
            await noticed(store, f"' at commit {noted} holds no object: nothing was deleted")
            await assert_quiet(store)
        async with running_store(local(repository), state, allow_empty=True) as store:
            await applied(store, noted)
            assert await store.list_objects() == {}

    run(scenario())


def test_only_what_came_from_the_source_is_pruned(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(local(repository), state, head(repository)) as store:
            await store.create(Node(metadata=ObjectMeta(name="joined")))
            instance = await store.create(builders.instance())
            commit = repository.push({"fleet/placement.yaml": None})
            await applied(store, commit)
            left = set(await store.list_objects())
            assert left == {model_key(), node_key("joined"), instance.key}

    run(scenario())


def test_lost_credentials_are_told_once_and_what_ran_goes_on(
    repository: Repository, server: GitServer, state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = tmp_path / "credentials"
    origin = server.url().removeprefix("git+https://").partition("/")[0]

    def give(password: str) -> None:
        credentials.write_text(f"https://ada:{password}@{origin}\n")
        credentials.chmod(0o600)

    async def scenario() -> None:
        give("right-Password-1")
        server.knobs.login = ("ada", "right-Password-1")
        source = followed(server, COVEY_GIT_CREDENTIALS=str(credentials))
        async with following(source, state, head(repository)) as store:
            server.knobs.login = ("ada", "another-Password-2")
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await noticed(store, "Authentication failed", "COVEY_GIT_CREDENTIALS")
            asked = len(server.knobs.requests)
            await until(lambda: len(server.knobs.requests) > asked)
            await assert_quiet(store)
            told = [record for record in caplog.records if "Authentication failed" in record.getMessage()]
            assert len(told) == 1
            assert "right-Password-1" in credentials.read_text(), "a refused password must stay in its file"
            give("another-Password-2")
            store.refresh_source()
            await applied(store, commit)
            assert store.source_state().notices == ()
            credentials.chmod(0o644)
            store.refresh_source()
            await noticed(store, f"chmod 600 '{credentials}'")
        assert "Password" not in caplog.text

    with caplog.at_level(logging.INFO):
        run(scenario())
    assert not any(b"-Password-" in content for content in contents_below(state))


def test_an_unreachable_server_stops_nothing_and_is_told_once(
    repository: Repository, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with git_server(repository.bare.parent) as server:
            source, port = followed(server), server.port
            async with following(source, state, head(repository)):
                pass
        async with running_store(source, state) as store:
            # The last good commit runs although nobody answers.
            assert set(await store.list_objects()) == BOTH
            await noticed(store, "What ran goes on, and it is tried again.")
            told = [record for record in caplog.records if "can't be followed" in record.getMessage()]
            assert len(told) == 1
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            with git_server(repository.bare.parent, port):
                await applied(store, commit)

    with caplog.at_level(logging.INFO):
        run(scenario())


def test_a_server_that_fails_is_asked_less_and_less(repository: Repository, server: GitServer, state: Path) -> None:
    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            server.knobs.failing = True
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await noticed(store, "503")
            before, began = len(server.knobs.requests), time.monotonic()
            await until(lambda: len(server.knobs.requests) >= before + 4)
            # After 0.3, 0.6, 1.2 and 2.4 s; without backoff it would be 1.2 s in all.
            assert time.monotonic() - began > 3.0
            server.knobs.failing = False
            store.refresh_source()
            await applied(store, commit)

    run(scenario())


def test_a_silent_server_is_given_up_and_its_git_ended(
    repository: Repository, server: GitServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_module, "LOOK_SECONDS", 5.0)

    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            server.knobs.silent = True
            await noticed(store, "no answer within 5 s. What ran goes on")
            assert await replicas(store) == 1
            server.knobs.silent = False
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await applied(store, commit)

        def is_alone() -> bool:
            return not [found for found in processes_of(state) if found.pid != os.getpid()]

        await asyncio.to_thread(wait_for, is_alone, "its git has ended")

    run(scenario())


def test_a_submodule_in_the_path_is_refused_by_name(repository: Repository, tmp_path: Path, state: Path) -> None:
    other = Repository(tmp_path / "other")
    other.push({"model.yaml": model_yaml("other")})
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.bare))

    async def scenario() -> None:
        good = head(repository)
        async with following(local(repository), state, good) as store:
            git(repository.work, *add, "elsewhere")
            fine = repository.push({}, "Outside of the path it is none of ours")
            await applied(store, fine)
            git(repository.work, *add, "fleet/shared")
            repository.push({}, "Inside")
            await until(lambda: store.source_state().errors)
            (error,) = store.source_state().errors
            assert error.file == "shared"
            assert "it is a submodule, and submodules are never fetched" in error.message
            assert store.source_state().applied == fine
        async with running_store(local(repository, "#fleet/shared/deep@main"), state) as store:
            await until(lambda: store.source_state().errors)
            assert store.source_state().errors[0].file == "fleet/shared"

    run(scenario())


def test_an_lfs_pointer_and_a_link_are_refused_by_name(repository: Repository, state: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"

    async def scenario() -> None:
        good = head(repository)
        async with following(local(repository), state, good) as store:
            repository.push({"fleet/big.yaml": pointer})
            await until(lambda: store.source_state().errors)
            (error,) = store.source_state().errors
            assert error.file == "big.yaml"
            assert "it holds a Git LFS pointer" in error.message
            (repository.work / "fleet" / "link.yaml").symlink_to("model.yaml")
            linked = repository.push({"fleet/big.yaml": None})
            await until(lambda: store.source_state().wanted == linked and store.source_state().errors)
            assert "it is a symbolic link" in store.source_state().errors[0].message
            assert store.source_state().applied == good

    run(scenario())


def test_a_document_that_is_too_large_is_refused_and_never_fetched(
    repository: Repository, server: GitServer, state: Path
) -> None:
    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            noise = os.urandom(3_000_000)
            fine = repository.push({"weights.bin": noise})
            await applied(store, fine)
            repository.push({"fleet/large.yaml": noise})
            await until(lambda: store.source_state().errors)
            assert "a document file must be at most 1048576 bytes" in store.source_state().errors[0].message
            size = sum(map(len, contents_below(clone_path(followed(server), state))))
            assert size < 1_000_000, "files that can't be documents stay at the server"

    run(scenario())


def test_one_file_under_many_names_counts_as_often_as_it_is_read(repository: Repository, state: Path) -> None:
    """Git keeps it once: a small push would bring gigabytes to parse."""
    large = "#" * 1_000_000 + "\n"

    async def scenario() -> None:
        good = head(repository)
        async with following(local(repository), state, good) as store:
            repository.push({f"fleet/copy{number}.yaml": large for number in range(70)})
            await until(lambda: store.source_state().errors)
            assert "together must be at most" in store.source_state().errors[0].message
            assert store.source_state().applied == good

    run(scenario())


def test_a_tree_of_more_names_than_may_be_is_refused_before_they_are_made_objects(
    repository: Repository, state: Path
) -> None:
    """Six trees of sixteen names stand for a million."""
    blob = git(repository.work, "hash-object", "-w", "--stdin", given="a")
    tree = git(repository.work, "mktree", given=f"100644 blob {blob}\ta\n")
    for _ in range(5):
        tree = git(repository.work, "mktree", given="".join(f"040000 tree {tree}\t{name:x}\n" for name in range(16)))
    commit = git(repository.work, "commit-tree", tree, "-m", "Many")

    async def scenario() -> None:
        async with following(local(repository, "#@main"), state, head(repository)) as store:
            git(repository.work, "push", "--quiet", "--force", "origin", f"{commit}:refs/heads/main")
            tracemalloc.start()
            try:
                await until(lambda: store.source_state().errors)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert "at most 20000 names" in store.source_state().errors[0].message
            assert most < 250 << 20, "what git printed, twice, and no more"

    run(scenario())


def test_a_repository_beyond_the_bound_is_given_up(
    repository: Repository, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_module, "MAX_CLONE_BYTES", 1 << 20)
    monkeypatch.setattr(clone_module, "SIZE_POLL_SECONDS", 0.001)
    files: dict[str, str | bytes | None] = {f"noise/{number}": os.urandom(300_000) for number in range(20)}

    async def scenario() -> None:
        good = head(repository)
        async with following(local(repository), state, good) as store:
            repository.push(files)
            await noticed(store, "it brings more than 1 MiB", "What ran goes on")
            assert store.source_state().applied == good

    run(scenario())


def test_a_clone_does_not_grow_by_every_commit_it_ever_fetched(
    repository: Repository, server: GitServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git keeps what came by a filtered fetch for ever."""
    monkeypatch.setattr(clone_module, "MAX_KEPT_BYTES", 1 << 20)
    clone = clone_path(followed(server), state)

    def size() -> int:
        return sum(map(len, contents_below(clone)))

    async def follow(store: FilesStore, number: int) -> None:
        document = placement_yaml(replicas=number)
        await applied(store, repository.push({"noise": os.urandom(300_000), "fleet/placement.yaml": document}))

    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            for number in range(1, 9):
                await follow(store, number)
            assert size() < 2 << 20
            assert await replicas(store) == 8
            await store.apply_documents(model_yaml("other"), "other.yaml")
            for number in range(1, 6):
                repository.push({"noise": os.urandom(300_000), "fleet/placement.yaml": placement_yaml(replicas=number)})
                async with asyncio.timeout(SOON_SECONDS):
                    while await replicas(store) != number:
                        await store.wait_changed(1)
            assert set(await store.list_objects()) == BOTH | {model_key("other")}, "an edit that only the clone has"

    run(scenario())


@pytest.mark.parametrize("damage", ["head", "objects", "everything"])
def test_a_damaged_clone_is_made_anew(repository: Repository, server: GitServer, state: Path, damage: str) -> None:
    clone = clone_path(followed(server), state)

    def spoil() -> None:
        match damage:
            case "head":
                (clone / "HEAD").write_text("nonsense")
            case "objects":
                for path in [*clone.glob("objects/??/*"), *clone.glob("objects/pack/*.pack")]:
                    path.chmod(0o600)
                    path.write_bytes(b"nonsense")
            case _:
                shutil.rmtree(clone)
                clone.write_bytes(b"not even a folder")

    async def scenario() -> None:
        async with following(followed(server), state, head(repository)):
            pass
        spoil()
        async with following(followed(server), state, head(repository)) as store:
            assert set(await store.list_objects()) == BOTH
            commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await applied(store, commit)
            if damage == "objects":
                # And once more while it runs.
                spoil()
                commit = repository.push({"fleet/placement.yaml": placement_yaml(replicas=3)})
                await applied(store, commit)
                await noticed(store, "was damaged and is made anew")

    run(scenario())


@pytest.mark.parametrize(
    "words", ["upload-pack: packfile 1 of the repository is corrupt", "remote did not send all necessary objects"]
)
def test_a_server_that_calls_itself_damaged_costs_no_clone(
    repository: Repository, server: GitServer, state: Path, words: str
) -> None:
    clone = clone_path(followed(server), state)
    repository.push({"never-fetched": os.urandom(MAX_FILE_BYTES + 1)})

    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            await store.apply_documents(model_yaml("other"), "other.yaml")
            server.knobs.complaint = words
            store.refresh_source()
            await noticed(store, words)
            asked = len(server.knobs.requests)
            await until(lambda: len(server.knobs.requests) > asked + 2)
            server.knobs.complaint = ""
            repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            store.refresh_source()
            async with asyncio.timeout(SOON_SECONDS):
                while await replicas(store) != 2:
                    await store.wait_changed(1)
            assert set(await store.list_objects()) == BOTH | {model_key("other")}
        assert not list(clone.parent.glob("*.damaged*"))

    run(scenario())


@pytest.mark.parametrize("lost", ["HEAD", "objects"])
def test_a_damaged_clone_with_edits_is_kept_however_often_clones_are_damaged(
    repository: Repository, server: GitServer, state: Path, lost: str
) -> None:
    clone = clone_path(followed(server), state)
    kept, later = clone.with_suffix(".damaged"), clone.with_suffix(".damaged-2")

    async def scenario() -> None:
        async with following(followed(server), state, head(repository)) as store:
            await store.apply_documents(model_yaml("other"), "other.yaml")
        edit = git(clone, "rev-parse", "refs/heads/covey")
        for number in range(3):
            if lost == "HEAD" and number == 0:
                (clone / "HEAD").unlink()
            else:
                for path in [*clone.glob("objects/??/*"), *clone.glob("objects/pack/*.pack")]:
                    path.chmod(0o600)
                    path.write_bytes(b"nonsense")
            async with following(followed(server), state, head(repository)) as store:
                await noticed(store, f"the old one is '{later if number else kept}'")
                assert set(await store.list_objects()) == BOTH
        assert (kept / "refs/heads/covey").read_text().strip() == edit
        assert {path.name for path in clone.parent.glob("*.damaged*")} == {kept.name, later.name}

    run(scenario())


FOLLOWER = """
import asyncio, os, sys
from pathlib import Path
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.store import FilesStore
from covey_controller.stores.git.address import parse_git_address
from covey_controller.stores.git.settings import GitSettings

async def main():
    source = GitSettings(parse_git_address(sys.argv[1]), os.environ, lambda: 1.0, poll_seconds=0.3)
    store = FilesStore(source, Path(sys.argv[2]), parse_documents)
    async with asyncio.TaskGroup() as group:
        group.create_task(store.run())
        await store.acquire_lease("follower")

asyncio.run(main())
"""


def test_kill_in_mid_fetch_leaves_a_clean_next_start(repository: Repository, server: GitServer, state: Path) -> None:
    source = followed(server)
    clone = clone_path(source, state)
    server.knobs.silent = True
    command = [sys.executable, "-c", FOLLOWER, str(source.address), str(state)]
    with subprocess.Popen(command, env=server.environment) as follower:
        deadline = time.monotonic() + SOON_SECONDS
        while not server.knobs.requests:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        orphans = [child.pid for child in psutil.Process(follower.pid).children(recursive=True)]
        follower.send_signal(signal.SIGKILL)
    assert orphans
    assert all(psutil.pid_exists(pid) for pid in orphans), "git outlives who started it"
    for left in ("shallow.lock", "refs/covey/incoming.lock", "config.lock", "objects/pack/tmp_pack_abc"):
        (clone / left).parent.mkdir(parents=True, exist_ok=True)
        (clone / left).write_bytes(b"")

    async def scenario() -> None:
        async with running_store(source, state) as store:
            await until(lambda: not any(psutil.pid_exists(pid) for pid in orphans))
            server.knobs.silent = False
            await applied(store, head(repository))
            assert set(await store.list_objects()) == BOTH

    run(scenario())
    assert not list(clone.rglob("*.lock"))
    assert not list(clone.rglob("tmp_pack_*"))


def test_the_first_start_without_the_remote_waits_for_it(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        away = repository.bare.with_suffix(".away")
        repository.bare.rename(away)
        async with running_store(local(repository), state) as store:
            await noticed(store, "can't be followed")
            assert await store.list_objects() == {}
            with pytest.raises(InvalidSet, match="hasn't been fetched yet"):
                await store.apply_documents(placement_yaml("other"), "x")
            away.rename(repository.bare)
            await applied(store, head(repository))

    run(scenario())


def test_hooks_filters_and_prompts_of_nobody_run(
    repository: Repository, server: GitServer, state: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\necho secret\n")
    program.chmod(0o700)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-commit", "pre-push", "post-index-change"):
        shutil.copy(program, hooks / name)
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[core]\n\thooksPath = {hooks}\n\taskPass = {program}\n\tfsmonitor = {program}\n"
        f'[filter "evil"]\n\tsmudge = {program}\n\tclean = {program}\n\trequired = true\n'
    )
    variables = {"GIT_CONFIG_GLOBAL": str(config), "GIT_ASKPASS": str(program), "SSH_ASKPASS": str(program)}

    async def scenario() -> None:
        repository.push({".gitattributes": "* filter=evil\n"})
        server.knobs.login = ("ada", "password")
        async with running_store(settings(server.url("#fleet@main"), server.environment | variables), state) as store:
            await noticed(store, "can't be followed")
            server.knobs.login = None
            store.refresh_source()
            await applied(store, head(repository))
            await store.apply_documents(placement_yaml(replicas=2), "x")
            assert await replicas(store) == 2

    run(scenario())
    assert not ran.exists()


def test_ssh_is_used_without_a_prompt(repository: Repository, state: Path, tmp_path: Path) -> None:
    """A double of ssh runs what the server would run. That OpenSSH itself is asked in batch mode: see its arguments."""
    arguments = tmp_path / "arguments"
    double = tmp_path / "bin" / "ssh"
    double.parent.mkdir()
    double.write_text(
        f'#!/bin/sh\necho "$@" >> "{arguments}"\nfor last; do :; done\ntest -t 0 && exit 1\nexec sh -c "$last"\n'
    )
    double.chmod(0o700)
    variables = ENVIRONMENT | {"PATH": f"{double.parent}:{os.environ['PATH']}"}
    source = settings(f"git+ssh://git@forge.example:2222{repository.bare}#fleet@main", variables, pushes=True)

    async def scenario() -> None:
        async with following(source, state, head(repository)) as store:
            await store.apply_documents(placement_yaml(replicas=2), "x")

    run(scenario())
    assert git(repository.bare, "log", "-1", "--format=%s", "main") == "Change Placement default/smollm2"
    for line in arguments.read_text().splitlines():
        assert "-o BatchMode=yes -o ConnectTimeout=10" in line
        assert "-p 2222 git@forge.example" in line


def test_two_sources_in_one_state_folder_have_a_clone_and_a_store_each(repository: Repository, state: Path) -> None:
    one, other = local(repository, "#fleet"), local(repository, "#fleet@main")
    assert clone_path(one, state) != clone_path(other, state)
    assert store_paths(str(one.address), state) != store_paths(str(other.address), state)
