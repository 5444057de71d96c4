"""`install.sh` in a clean home, with nothing but wheels in a folder: no index, no settings, no terminal."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv
from kit.cache import shared_cache
from kit.fleet import EXAMPLE
from kit.ports import free_port

# The first run on a machine fetches forty wheels.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install.sh"


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """A local index: Covey's wheels of this checkout, those that they need, and a vLLM that says its version."""
    with tempfile.TemporaryDirectory(prefix="wheels") as folder:
        for wheel in _needed_wheels().iterdir():
            os.link(wheel, Path(folder) / wheel.name) if _is_same_disk(wheel, folder) else shutil.copy(wheel, folder)
        build = [uv.find_uv_bin(), "build", "--quiet", "--all-packages", "--wheel", "--out-dir", folder]
        subprocess.run(build, cwd=ROOT, check=True, timeout=240)
        _make_vllm(Path(folder))
        yield Path(folder)


def _is_same_disk(path: Path, folder: str) -> bool:
    return path.stat().st_dev == os.stat(folder).st_dev


def _needed_wheels() -> Path:
    """As locked, fetched once for each lock."""
    digest = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:16]
    folder = shared_cache() / f"install-{digest}-{sys.version_info.major}{sys.version_info.minor}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=shared_cache()) as scratch:
        subprocess.run([sys.executable, "-m", "venv", f"{scratch}/venv"], check=True, timeout=120)
        export = [uv.find_uv_bin(), "export", "--quiet", "--frozen", "--package", "covey", "--no-emit-workspace"]
        wanted = subprocess.run([*export, "--no-hashes"], cwd=ROOT, check=True, capture_output=True, timeout=60).stdout
        (Path(scratch) / "wanted.txt").write_bytes(wanted)
        pip = [f"{scratch}/venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", f"{scratch}/wheels", "-r", f"{scratch}/wanted.txt"], check=True, timeout=280)
        (Path(scratch) / "wheels").rename(folder)
    return folder


def _make_vllm(folder: Path) -> None:
    files = {
        "vllm.py": "def main():\n    print('9.9')\n",
        "vllm-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n",
        "vllm-9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "vllm-9.9.dist-info/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
    }
    record = "vllm-9.9.dist-info/RECORD"
    lines = [f"{name},sha256={_record_digest(text)},{len(text)}\n" for name, text in files.items()]
    with zipfile.ZipFile(folder / "vllm-9.9-py3-none-any.whl", "w") as wheel:
        for name, text in (files | {record: "".join([*lines, f"{record},,\n"])}).items():
            wheel.writestr(name, text)


def _record_digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def install(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """With a home of its own, and no index that answers."""
    environment = {
        "HOME": str(home),
        "PATH": f"{home}/bin:/usr/bin:/bin",
        "PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple",
        "PIP_NO_COMPILE": "1",  # half of its time
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments],
        env=environment | variables,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


# Half of an environment that was replaced goes, then the run is told to end.
_RM_THAT_ENDS_THE_RUN = """
for each in "$@"; do
    case $each in */venv.before | */venv.gone)
        if [ -d "$each" ]; then
            /bin/rm -rf "$each/bin"
            kill -TERM $PPID
            exit 1
        fi ;;
    esac
done
exec /bin/rm "$@"
"""


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_one_command_makes_a_node_without_an_index_and_again_changes_nothing(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    calls = tmp_path / "calls"
    (tmp_path / "bin" / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\n')
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    settings = tmp_path / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("[install]\nuser = true\n")
    prefix = tmp_path / "a place"
    words = ["--headless", "--offline", "--from", str(wheels), "--prefix", str(prefix), "--python", sys.executable]
    words += ["--with-vllm", "--up", str(EXAMPLE)]
    first = install(tmp_path, *words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "The doctor's look at this machine:" in first.stdout
    assert f"'{prefix}/bin' isn't on PATH" in first.stdout
    for program, said in (("covey", "covey, version"), ("vllm", "9.9"), ("kubectl-covey", "covey, version")):
        done = subprocess.run([prefix / "bin" / program, "--version"], capture_output=True, text=True, check=True)
        assert said in done.stdout
    unit = tmp_path / ".config" / "systemd" / "user" / "covey-up.service"
    assert f"{prefix}/share/covey/venv/bin/covey" in unit.read_text()
    assert f"PATH={prefix}/bin:" in (tmp_path / ".config" / "covey" / "up.env").read_text()
    assert "enable --now covey-up.service" in calls.read_text()
    assert not (tmp_path / ".local").exists(), "only what was named is written"
    assert not (tmp_path / ".profile").exists()

    before = snapshot(prefix) | snapshot(tmp_path / ".config")
    again = install(tmp_path, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is installed in" in again.stdout
    assert "already, from these very wheels" in again.stdout
    assert snapshot(prefix) | snapshot(tmp_path / ".config") == before

    (prefix / "share" / "covey" / "installed").write_text("other wheels\n")
    upgrade = install(tmp_path, *words)
    assert upgrade.returncode == 0, upgrade.stdout + upgrade.stderr
    assert "Restart it soon: systemctl --user restart covey-up.service" in upgrade.stdout
    assert "Restart it soon" not in first.stdout + again.stdout

    # Its interpreter has gone, as with an upgrade of the system's: what is there stays until its successor is.
    python = prefix / "share" / "covey" / "venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere")
    refused = install(tmp_path, *words, PIP_REQUIRE_HASHES="1")
    assert (refused.returncode, "pip could not install it" in refused.stderr) == (1, True)
    assert python.readlink() == Path("/nowhere")
    assert [path.name for path in (prefix / "share" / "covey").glob("venv*")] == ["venv"]

    link = prefix / "bin" / "covey"
    link.unlink()
    link.write_text("somebody's own\n")
    refused = install(tmp_path, *words)
    assert refused.returncode == 1
    assert "isn't this installer's" in refused.stderr
    assert link.read_text() == "somebody's own\n"
    assert [path.name for path in (prefix / "share" / "covey").glob("venv*")] == ["venv"]


def write_program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Stubbed:
    """An installation in the usual place whose programs, all but the installer, do nothing."""

    user: Path

    @property
    def home(self) -> Path:
        return self.user / ".local" / "share" / "covey"

    def install(self, *more: str) -> subprocess.CompletedProcess[str]:
        return install(self.user, "--from", str(self.user / "wheels"), "--python", sys.executable, *more)


@pytest.fixture
def stubbed(tmp_path: Path) -> Stubbed:
    made = Stubbed(tmp_path)
    (tmp_path / "wheels").mkdir()
    (names,) = re.findall(r'^WHEELS="(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    for name in names.split():
        (tmp_path / "wheels" / f"{name}-0.1.0-py3-none-any.whl").touch()
    for program in ("python", "covey"):
        write_program(made.home / "venv" / "bin" / program)
    return made


def test_a_run_that_ends_while_it_removes_what_it_replaced_leaves_its_successor_whole(stubbed: Stubbed) -> None:
    home, covey = stubbed.home, stubbed.home / "venv" / "bin" / "covey"
    write_program(home / "venv.before" / "bin" / "covey", "exit 1")
    write_program(stubbed.user / "bin" / "rm", _RM_THAT_ENDS_THE_RUN)
    ended = stubbed.install()
    assert ended.returncode == 143, ended.stdout + ended.stderr
    assert (covey.exists(), (home / "installed").exists()) == (True, False)
    assert not (home / "venv.before").exists()
    (stubbed.user / "bin" / "rm").unlink()
    again = stubbed.install()
    assert (again.returncode, "Installing Covey" in again.stdout) == (0, True), again.stdout + again.stderr

    write_program(home / "venv.before" / "bin" / "covey", "exit 1")  # of an installer that wrote its stamp before
    third = stubbed.install()
    assert (third.returncode, "is installed in" in third.stdout) == (0, True), third.stdout + third.stderr
    assert covey.exists()
    assert [path.name for path in home.glob("venv*")] == ["venv"]


def test_an_upgrade_that_failed_and_is_tried_again_tells_what_still_runs(stubbed: Stubbed) -> None:
    (stubbed.home / "installed").write_text("other wheels\n")
    write_program(stubbed.user / "bin" / "systemctl")
    unit = stubbed.user / ".config" / "systemd" / "user" / "covey-up.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"ExecStart={stubbed.home}/venv/bin/covey up\n")
    python = stubbed.home / "venv" / "bin" / "python"
    write_program(python, 'case "$*" in *" install "*) exit 1 ;; esac')
    failed = stubbed.install()
    assert (failed.returncode, "pip could not install it" in failed.stderr) == (1, True), failed.stderr
    write_program(python)
    upgraded = stubbed.install()
    assert upgraded.returncode == 0, upgraded.stderr
    assert "Restart it soon: systemctl --user restart covey-up.service" in upgraded.stdout
    assert "Restart it soon" not in stubbed.install().stdout


def test_another_python_that_is_named_makes_the_environment_anew_or_leaves_it(stubbed: Stubbed) -> None:
    python = stubbed.home / "venv" / "bin" / "python"
    write_program(python, 'case "$*" in *base_prefix*) echo "/elsewhere 3 11" ;; esac')
    failed = stubbed.install()  # the wheels are none to a real pip
    assert "Making the environment anew, of" in failed.stdout
    assert (failed.returncode, "pip could not install it" in failed.stderr) == (1, True), failed.stderr
    assert "/elsewhere" in python.read_text(), "what was there is back"
    unnamed = install(
        stubbed.user, "--from", str(stubbed.user / "wheels"), PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin"
    )
    assert (unnamed.returncode, "anew" in unnamed.stdout) == (0, False), unnamed.stdout + unnamed.stderr


def test_a_setting_of_pips_to_install_for_the_user_is_put_aside(stubbed: Stubbed) -> None:
    asked = stubbed.user / "asked"
    write_program(
        stubbed.home / "venv" / "bin" / "python", f'case "$*" in *" install "*) echo "$PIP_USER" >> "{asked}" ;; esac'
    )
    done = stubbed.install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(asked.read_text().splitlines()) == {"0"}


def test_a_vllm_whose_interpreter_has_gone_is_installed_anew(stubbed: Stubbed) -> None:
    for program in ("vllm", "python"):
        write_program(stubbed.home / "vllm" / "bin" / program)
    there = stubbed.install("--with-vllm")
    assert (there.returncode, "vLLM is installed in" in there.stdout) == (0, True), there.stdout + there.stderr
    (stubbed.home / "vllm" / "bin" / "python").unlink()
    (stubbed.home / "vllm" / "bin" / "python").symlink_to("/nowhere")
    anew = stubbed.install("--with-vllm")
    assert (anew.returncode, "Installing vLLM into" in anew.stdout) == (0, True), anew.stdout + anew.stderr
    assert (stubbed.home / "vllm" / "bin" / "python").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--offline",), 2, "--offline needs --from"),
        (("--frob",), 2, "there is no option '--frob'"),
        (("--prefix", ""), 2, "--prefix needs a value"),
        (("--from", "/nowhere"), 2, "there is no folder '/nowhere'"),
        (("--up", ".", "--join", "https://127.0.0.1:1"), 2, "exclude each other"),
        (("--token-file", "t"), 2, "must be given with --join"),
        (("--join", "https://127.0.0.1:1", "--token-file", "t"), 2, "there is no file 't'"),
        (("--from", "."), 1, "must hold a wheel of covey; there is none"),
        (("--from", ".", "--python", "/bin/false"), 1, "must be Python 3.11 or newer"),
    ],
)
def test_wrong_use_is_told_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    given = arguments if "--python" in arguments else (*arguments, "--python", sys.executable)
    done = install(tmp_path, *given)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs by sudo")
def test_a_users_home_is_not_written_by_root(tmp_path: Path) -> None:
    shutil.chown(tmp_path, "nobody")
    done = install(tmp_path, "--from", ".", "--python", sys.executable, SUDO_USER="nobody")
    assert (done.returncode, "which isn't root's" in done.stderr) == (2, True)
    shutil.chown(tmp_path, "root")
    done = install(tmp_path, "--from", ".", "--python", sys.executable, SUDO_USER="nobody")
    assert "must hold a wheel of covey" in done.stderr


def test_half_of_the_script_does_nothing(tmp_path: Path) -> None:
    lines = SCRIPT.read_text().splitlines(keepends=True)
    half = tmp_path / "half.sh"
    half.write_text("".join(lines[:-1]))
    done = subprocess.run(
        ["/bin/sh", str(half), "--from", str(tmp_path)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_python_and_two_wheels_of_one_part_are_told(tmp_path: Path) -> None:
    for version in ("0.1.0", "0.2.0"):
        (tmp_path / f"covey-{version}-py3-none-any.whl").touch()
    done = install(tmp_path, "--from", ".", "--python", sys.executable)
    assert (done.returncode, "must hold one wheel of covey; there are 2" in done.stderr) == (1, True)
    old = tmp_path / "old"
    old.mkdir()
    for name in ("dirname", "uname"):
        (old / name).symlink_to(shutil.which(name) or "")
    (old / "python3").symlink_to("/bin/false")
    done = install(tmp_path, "--from", ".", PATH=str(old))
    assert (done.returncode, "Python 3.11 or newer must be on PATH" in done.stderr) == (1, True)


def test_the_script_is_plain_sh() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "shellcheck", "--shell=sh", "--severity=style", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
