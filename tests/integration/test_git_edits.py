"""Edits of a git source: each is a commit with an author, carried over or pushed, and never lost in silence."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from covey_api.kinds import ObjectKey
from covey_api.placement import Placement
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.store import FilesStore, clone_path
from covey_controller.stores.git.address import parse_git_address
from covey_controller.stores.git.settings import GitSettings
from kit.documents import model_key, model_yaml, placement_key, placement_yaml, running_store
from kit.git import ENVIRONMENT, Repository, git

pytestmark = pytest.mark.integration

SOON_SECONDS = 30.0
ADA = "Ada Lovelace <ada@example.com>"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "served")
    made.push({"fleet/model.yaml": model_yaml(), "fleet/placement.yaml": f"# why\n{placement_yaml()}"})
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "controller"


def source_of(repository: Repository, rest: str = "#fleet@main", *, pushes: bool = False) -> GitSettings:
    address = parse_git_address(repository.url + rest)
    return GitSettings(address, ENVIRONMENT, lambda: 1.0, pushes=pushes, poll_seconds=1.0)


def head(repository: Repository) -> str:
    return git(repository.bare, "rev-parse", "main")[:12]


async def until(holds: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    try:
        async with asyncio.timeout(SOON_SECONDS):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {SOON_SECONDS} s; found {what()}")


@contextlib.asynccontextmanager
async def following(source: GitSettings, state: Path) -> AsyncGenerator[FilesStore]:
    async with running_store(source, state) as store:
        await until(lambda: store.source_state().applied, store.source_state)
        yield store


async def replicas(store: FilesStore, name: str = "smollm2") -> int:
    found = (await store.list_objects())[placement_key(name)]
    assert isinstance(found, Placement)
    return found.spec.replicas


async def refreshed(store: FilesStore, commit: str) -> None:
    store.refresh_source()
    await until(lambda: store.source_state().wanted == commit, store.source_state)


def log_of(folder: Path, ref: str, form: str) -> str:
    return git(folder, "log", "-1", f"--format={form}", ref)


def test_an_edit_is_a_commit_that_is_ahead_until_somebody_pushes_it(repository: Repository, state: Path) -> None:
    clone = clone_path(source_of(repository), state)

    async def scenario() -> None:
        before = head(repository)
        async with following(source_of(repository), state) as store:
            (one,) = await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            assert one.outcome == "configured"
            assert await replicas(store) == 2
            assert log_of(clone, "covey", "%an <%ae>|%cn|%s") == f"{ADA}|Covey|Change Placement default/smollm2"
            assert git(clone, "show", "covey:fleet/placement.yaml").startswith("apiVersion")
            assert head(repository) == before
            (notice,) = store.source_state().notices
            assert "1 edit is only in the clone" in notice
            assert store.source_state().applied == log_of(clone, "covey", "%H")[:12]
        # It survives a restart, and what nothing changes makes no commit.
        async with following(source_of(repository), state) as store:
            assert await replicas(store) == 2
            (one,) = await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            assert one.outcome == "unchanged"
            assert git(clone, "rev-list", "--count", f"{before}..covey") == "1"
            # As the notice says:
            command = store.source_state().notices[0].partition("Push with: ")[2].partition(" (or")[0]
            _, _, folder, *push = command.split(" ")
            git(Path(folder.strip("'")), *push)
            await refreshed(store, head(repository))
            await until(lambda: not store.source_state().notices, store.source_state)
            assert await replicas(store) == 2

    asyncio.run(scenario())


def test_edits_are_carried_over_when_the_remote_moves_on(repository: Repository, state: Path) -> None:
    clone = clone_path(source_of(repository), state)

    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.apply_documents(placement_yaml("mine"), "x", ADA)
            await store.apply_documents(placement_yaml("mine", replicas=3), "x", ADA)
            repository.push({"fleet/theirs.yaml": placement_yaml("theirs")})
            store.refresh_source()
            await until(lambda: git(clone, "rev-parse", "refs/covey/remote")[:12] == head(repository))
            await until(lambda: store.source_state().applied == git(clone, "rev-parse", "covey")[:12])
            assert {placement_key(), placement_key("mine"), placement_key("theirs")} < set(await store.list_objects())
            assert await replicas(store, "mine") == 3
            assert log_of(clone, "covey", "%an <%ae>") == ADA
            assert "2 edits are only in the clone" in store.source_state().notices[0]

    asyncio.run(scenario())


def test_an_edit_that_contradicts_the_remote_is_taken_back_and_kept(repository: Repository, state: Path) -> None:
    clone = clone_path(source_of(repository), state)

    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            mine = store.source_state().applied
            theirs = repository.push({"fleet/placement.yaml": placement_yaml(replicas=7)})
            await refreshed(store, theirs)
            assert await replicas(store) == 7
            await until(lambda: store.source_state().notices)
            (notice,) = store.source_state().notices
            assert f"edit {mine} contradicts what the remote became" in notice
        async with following(source_of(repository), state) as store:
            await until(lambda: store.source_state().notices)
            assert git(clone, "show", f"refs/covey/aside/{mine}:fleet/placement.yaml").endswith("replicas: 2")
            git(clone, "update-ref", "-d", f"refs/covey/aside/{mine}")
        async with following(source_of(repository), state) as store:
            assert store.source_state().notices == ()

    asyncio.run(scenario())


def test_an_edit_that_somebody_else_pushed_too_is_done(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            same = repository.push({"fleet/placement.yaml": placement_yaml(replicas=2)})
            await refreshed(store, same)
            await until(lambda: not store.source_state().notices, store.source_state)
            assert store.source_state().applied == same

    asyncio.run(scenario())


def test_with_push_an_edit_is_at_the_remote_when_it_is_answered(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository, pushes=True), state) as store:
            # Somebody else's newer commit is taken along.
            repository.push({"fleet/theirs.yaml": placement_yaml("theirs")})
            await store.apply_documents(placement_yaml("mine"), "x", ADA)
            assert store.source_state().applied == head(repository)
            names = git(repository.bare, "ls-tree", "-r", "--name-only", "main", "fleet/").splitlines()
            assert names == [f"fleet/{name}.yaml" for name in ("model", "placement-mine", "placement", "theirs")]
            await store.delete_documents((placement_key("mine"), placement_key()), ADA)
            assert store.source_state().applied == head(repository)
            names = git(repository.bare, "ls-tree", "-r", "--name-only", "main", "fleet/").splitlines()
            assert names == ["fleet/model.yaml", "fleet/theirs.yaml"]
            wanted = "Delete Placement default/mine, Delete Placement default/smollm2"
            assert log_of(repository.bare, "main", "%s") == wanted
            assert store.source_state().notices == ()

    asyncio.run(scenario())


def test_edits_made_before_are_pushed_when_pushing_is_allowed(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            commit = store.source_state().applied
        async with following(source_of(repository, pushes=True), state) as store:
            await until(lambda: head(repository) == commit, store.source_state)

    asyncio.run(scenario())


def test_two_controllers_and_a_person_push_at_once_and_nothing_is_lost(repository: Repository, tmp_path: Path) -> None:
    edits = 4

    async def edit(store: FilesStore, name: str) -> None:
        for number in range(edits):
            for _ in range(20):
                try:
                    text = placement_yaml(f"{name}-{number}")
                    await store.apply_documents(text, "x", f"{name} <{name}@example.com>")
                    break
                except InvalidSet as error:  # five times in a row somebody else was first
                    if "try again" not in str(error):
                        raise

    async def push_by_hand() -> None:
        for number in range(edits):
            for _ in range(20):
                try:
                    await asyncio.to_thread(repository.pull)
                    await asyncio.to_thread(
                        repository.push, {f"fleet/hand-{number}.yaml": placement_yaml(f"h-{number}")}
                    )
                    break
                except AssertionError:  # a controller was first
                    await asyncio.to_thread(git, repository.work, "reset", "--quiet", "--hard", "origin/main")

    async def scenario() -> None:
        source = source_of(repository, pushes=True)
        async with following(source, tmp_path / "a") as a, following(source, tmp_path / "b") as b:
            async with asyncio.TaskGroup() as group:
                group.create_task(edit(a, "a"))
                group.create_task(edit(b, "b"))
                group.create_task(push_by_hand())
            wanted = {placement_key(f"{name}-{number}") for name in "abh" for number in range(edits)}
            for store in (a, b):
                await refreshed(store, head(repository))
                await until(lambda store=store: store.source_state().applied == head(repository))
                assert wanted < set(await store.list_objects())
        assert git(repository.bare, "rev-list", "--count", "main") == str(1 + 3 * edits)

    asyncio.run(scenario())


def test_a_push_that_is_refused_changes_nothing(repository: Repository, state: Path) -> None:
    hook = repository.bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'the branch is protected' >&2\nexit 1\n")
    hook.chmod(0o700)

    async def scenario() -> None:
        async with following(source_of(repository, pushes=True), state) as store:
            before = store.source_state().applied
            with pytest.raises(InvalidSet, match="nothing was changed") as caught:
                await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            assert "pre-receive hook declined" in str(caught.value)
            assert await replicas(store) == 1
            assert store.source_state().applied == before == head(repository)
            hook.unlink()
            await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            assert await replicas(store) == 2

    asyncio.run(scenario())


def test_a_branch_that_the_server_protects_from_being_rewritten_is_never_forced(
    repository: Repository, state: Path
) -> None:
    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.apply_documents(placement_yaml("mine"), "x", ADA)
        theirs = repository.push({"fleet/theirs.yaml": placement_yaml("theirs")})
        async with following(source_of(repository, pushes=True), state) as store:
            await until(lambda: head(repository) != theirs, store.source_state)
            assert git(repository.bare, "rev-parse", "main~1")[:12] == theirs

    asyncio.run(scenario())


def test_a_source_of_one_file_is_edited_in_it(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository, "#fleet/placement.yaml", pushes=True), state) as store:
            await store.apply_documents(placement_yaml("other"), "x", ADA)
            content = git(repository.bare, "show", "main:fleet/placement.yaml")
            assert content.startswith("# why\n")
            assert "name: other" in content
            assert set(await store.list_objects()) == {placement_key(), placement_key("other")}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "rest"),
    [("-d.yaml", ""), ("-d.yaml", "#-d.yaml"), ("--name-only/--full-name.yaml", "#--name-only")],
)
def test_files_that_are_called_as_an_option_are_edited(path: str, rest: str, state: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "options")
    repository.push({path: f"{model_yaml()}---\n{placement_yaml()}"})

    async def scenario() -> None:
        async with following(source_of(repository, rest, pushes=True), state) as store:
            await store.apply_documents(placement_yaml(replicas=2), "x", ADA)
            assert await replicas(store) == 2
            repository.pull()
            repository.push({path: f"{model_yaml()}---\n{placement_yaml(replicas=3)}"})
            await refreshed(store, head(repository))
            assert await replicas(store) == 3
            await store.delete_documents((placement_key(),), ADA)
            assert set(await store.list_objects()) == {model_key()}
            assert git(repository.bare, "ls-tree", "-r", "--name-only", "main") == path

    asyncio.run(scenario())


def test_an_invalid_edit_and_an_unknown_name_make_no_commit(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            before = store.source_state().applied
            with pytest.raises(InvalidSet, match=r"spec.replicas"):
                await store.apply_documents(placement_yaml().replace("replicas: 1", "replicas: many"), "x", ADA)
            with pytest.raises(KeyError):
                await store.delete_documents((ObjectKey("Model", "default", "none"),), ADA)
            assert store.source_state().applied == before
            assert model_key() in await store.list_objects()

    asyncio.run(scenario())


def test_everything_can_be_deleted_by_name(repository: Repository, state: Path) -> None:
    async def scenario() -> None:
        async with following(source_of(repository), state) as store:
            await store.delete_documents((placement_key(), model_key()), ADA)
            assert await store.list_objects() == {}

    asyncio.run(scenario())
