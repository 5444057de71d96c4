"""What every test may use: golden files, and the rule that no test leaves a child process behind."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms, tool_command

GOLDEN_FILES = Path(__file__).parent / "golden" / "files"
# Children that were told to end get this long; a busy machine needs it.
CHILDREN_END_SECONDS = 30.0

# How long an example takes says how busy the machine is, and nothing of the code. A commit passes in CI or it doesn't.
settings.register_profile(
    "covey", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("covey")

Golden = Callable[[str, str], None]

# Files stay together, and these alone take as long as a fifth of all tests: begun last, all others would wait for them.
LONG_FILES = frozenset(("test_kube_store.py", "test_both_stores.py", "test_kube_controller.py"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-refresh", action="store_true", help="rewrite golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares the text with `tests/golden/files/<name>`; `make golden` rewrites it."""
    is_refreshed = bool(request.config.getoption("--golden-refresh"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN_FILES / name
        if is_refreshed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"golden file '{name}' must exist; `make golden` writes it"
        assert text == path.read_text(encoding="utf-8"), f"'{name}' differs; if that is wanted, run `make golden`"

    return compare


@pytest.fixture(scope="session")
def shared_control_plane() -> Iterator[ControlPlane]:
    try:
        with running_control_plane() as plane:
            yield plane
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def control_plane(shared_control_plane: ControlPlane) -> ControlPlane:
    """One real Kubernetes control plane for all tests that leave it running, as just installed for each module.

    A module's own tests `clear` it before use. One that stops or empties it takes a `running_control_plane` of its own.
    """
    shared_control_plane.forget_guests()
    return shared_control_plane


@pytest.fixture(scope="session")
def kube_tools() -> None:
    """Helm, kstatus and their like are there; skips with the reason where they can't be."""
    try:
        tool_command("helm")
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def children_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a child process running, and ends the child. Longer-lived fixtures may keep theirs.

    With the marker `restarts_processes` a test starts processes of such a fixture again, which ends them.
    """
    if request.node.get_closest_marker("restarts_processes") is not None:
        yield
        return
    before = _observe_children()
    yield
    deadline = time.monotonic() + CHILDREN_END_SECONDS
    while left := _observe_children() - before:
        if time.monotonic() > deadline:
            found = ", ".join(_describe(child) for child in left)
            for child in left:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            pytest.fail(f"a test must end every process that it starts; still running: {found}")
        time.sleep(0.05)


def _observe_children() -> set[psutil.Process]:
    """Running children of this process. One system call when there are none, which is nearly always."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return set()
    return {child for child in psutil.Process().children() if _is_running(child)}


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} ({' '.join(child.cmdline())[:80]})"
    except psutil.Error:
        return f"{child.pid} (has ended since)"


def _is_running(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
