"""`covey service` as a user calls it, before a systemctl that writes down what it is told."""

import json
import os
import shutil
import tempfile
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner
from covey.errors import CommandError
from covey.main import cli
from kit.fleet import EXAMPLE

pytestmark = [pytest.mark.integration]

# Answers as systemd's does; `$FAILS` makes it refuse as one without a bus.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in
  *--version*) echo "systemd 252 (252.1)"; exit 0;;
esac
if [ -n "$FAILS" ]; then echo "Failed to connect to bus: No medium found" >&2; exit 1; fi
case "$*" in
  *disable*) [ -z "$GONE" ] || { echo "Unit file covey-up.service does not exist." >&2; exit 1; };;
  *stop*) rm -f "$HOME/remembered";;
  *is-active*)
    [ ! -f "$HOME/remembered" ] || { echo active; exit 0; }
    [ "${ACTIVE:-3}" = 0 ] && echo active || echo inactive; exit "${ACTIVE:-3}";;
  *show*) echo "ActiveState=${STATE:-active}"; printf '%s\\n' SubState=running Result=success MainPID=7 NRestarts=2
    printf '%s\\n' UnitFileState=enabled "ActiveEnterTimestamp=Mon 2026-11-30 09:00:00 UTC";;
esac
"""
# Answers as launchd's does: what it has lies in `$HOME/loaded`, as it was when it was taken; an end takes a while.
LAUNCHCTL = """#!/bin/sh
echo "$@" >> "$CALLS"
if [ -n "$FAILS" ]; then echo "Could not communicate with launchd" >&2; exit 1; fi
case "$1" in
  print)
    [ ! -f "$HOME/ending" ] || rm "$HOME/ending" "$HOME/loaded"
    [ -f "$HOME/loaded" ] || { echo "Could not find service in domain" >&2; exit 113; }
    [ -n "$STOPPED" ] || echo "    state = running";;
  bootstrap)
    [ ! -f "$HOME/loaded" ] || { echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }
    cp "$3" "$HOME/loaded";;
  bootout)
    [ -f "$HOME/loaded" ] || { echo "Boot-out failed: 3: No such process" >&2; exit 3; }
    touch "$HOME/ending"
    echo "Boot-out failed: 36: Operation now in progress" >&2
    exit 36;;
esac
"""
# Of nobody's fleet; only its form matters.
TOKEN = f"covey-0123456789ab.{'s' * 43}.{'0' * 64}"


@dataclass(frozen=True, slots=True)
class Machine:
    home: Path

    @property
    def unit(self) -> Path:
        return self.home / ".config" / "systemd" / "user" / "covey-up.service"

    @property
    def property_list(self) -> Path:
        return self.home / "Library" / "LaunchAgents" / "dev.covey.up.plist"

    @property
    def variables(self) -> Path:
        return self.home / ".config" / "covey" / "up.env"

    def calls(self) -> list[str]:
        path = self.home / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def covey(self, *arguments: str, folder: Path | None = None, **variables: str) -> "Said":
        """The command in this process, whose libraries take a second to load; what it starts is real."""
        environment: dict[str, str | None] = {
            **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "COVEY_STATE", "COVEY_CACHE")),
            "PATH": f"{self.home}/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "CALLS": str(self.home / "calls"),
        }
        with chdir(folder or self.home):
            done = CliRunner().invoke(cli, ["service", *arguments], env=environment | variables, standalone_mode=False)
        match done.exception:
            case CommandError() as error:
                return Said(error.code, done.stdout, f"{done.stderr}{error}")
            case ClickException() as error:
                return Said(2, done.stdout, error.format_message())
            case None | SystemExit():
                return Said(int(done.return_value or done.exit_code), done.stdout, done.stderr)
            case error:
                raise error


@dataclass(frozen=True, slots=True)
class Said:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    programs = tmp_path / "bin"
    programs.mkdir()
    doubles = {"systemctl": SYSTEMCTL, "launchctl": LAUNCHCTL, "journalctl": "#!/bin/sh\necho last words\n"}
    for name, content in doubles.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    return Machine(tmp_path)


def test_install_starts_it_and_again_changes_nothing(machine: Machine) -> None:
    first = machine.covey("install", "up", EXAMPLE.name, "--port", "9000", folder=EXAMPLE.parent)
    assert first.returncode == 0, first.stderr
    text = machine.unit.read_text()
    (line,) = [each for each in text.splitlines() if each.startswith("ExecStart=")]
    assert f" up --port 9000 {EXAMPLE} --state {machine.home}/.local/state/covey --cache " in line
    assert "--user enable --now covey-up.service" in "\n".join(machine.calls())
    assert "enable-linger" in first.stdout
    machine.variables.write_text("HF_TOKEN=mine\n")
    again = machine.covey("install", "up", str(EXAMPLE), "--port", "9000")
    assert again.returncode == 0
    assert "unchanged" in again.stdout
    assert machine.unit.read_text() == text
    assert machine.variables.read_text() == "HF_TOKEN=mine\n"
    assert not any("restart" in each for each in machine.calls())


def test_a_change_is_written_and_what_runs_goes_on(machine: Machine) -> None:
    machine.covey("install", "up", str(EXAMPLE))
    changed = machine.covey("install", "up", str(EXAMPLE), "--port", "9001", ACTIVE="0")
    assert changed.returncode == 0
    assert "changed" in changed.stdout
    assert "to take the change: `systemctl --user restart covey-up.service`" in changed.stdout
    assert "--port 9001" in machine.unit.read_text()
    assert not any(" restart " in each or " stop " in each for each in machine.calls())


def test_a_file_that_was_edited_by_hand_is_told_and_kept(machine: Machine) -> None:
    machine.covey("install", "up", str(EXAMPLE))
    machine.unit.write_text(machine.unit.read_text().replace("UMask=0077", "UMask=0027"))
    edited = machine.unit.read_text()
    before = machine.calls()
    refused = machine.covey("install", "up", str(EXAMPLE), "--port", "9002")
    assert refused.returncode == 1
    assert "was edited by hand" in refused.stderr
    assert "--force replaces it" in refused.stderr
    removed = machine.covey("uninstall", "up")
    assert (removed.returncode, "--force does it" in removed.stderr) == (1, True)
    assert machine.unit.read_text() == edited
    assert [each for each in machine.calls()[len(before) :] if "--version" not in each] == []
    assert json.loads(machine.covey("status", "-o", "json").stdout)["services"][0]["editedByHand"] is True
    assert machine.covey("install", "--force", "up", str(EXAMPLE)).returncode == 0
    assert "UMask=0077" in machine.unit.read_text()


def test_uninstall_stops_it_keeps_what_is_the_users_and_is_nothing_the_second_time(machine: Machine) -> None:
    machine.covey("install", "up", str(EXAMPLE))
    done = machine.covey("uninstall", "up")
    assert done.returncode == 0
    assert not machine.unit.exists()
    assert machine.variables.exists()
    assert any("disable --now covey-up.service" in each for each in machine.calls())
    again = machine.covey("uninstall", "up")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)


def test_status_says_what_runs_since_when_and_its_last_words(machine: Machine) -> None:
    nothing = machine.covey("status")
    assert (nothing.returncode, "no service of Covey is installed" in nothing.stdout) == (3, True)
    machine.covey("install", "up", str(EXAMPLE))
    running = machine.covey("status")
    assert running.returncode == 0
    for words in (
        "covey-up: Running",
        "since Mon 2026-11-30",
        "pid 7",
        "2 restarts",
        "| last words",
        "journalctl --user",
    ):
        assert words in running.stdout
    failed = machine.covey("status", "up", "-o", "json", STATE="failed")
    assert failed.returncode == 1
    (found,) = json.loads(failed.stdout)["services"]
    assert (found["state"], found["enabled"], found["lastLines"]) == ("Failed", True, ["last words"])


def test_a_manager_that_is_away_is_told_and_the_files_are_there(machine: Machine) -> None:
    done = machine.covey("install", "up", str(EXAMPLE), FAILS="1")
    assert done.returncode == 1
    assert "its manager didn't take them: Failed to connect to bus" in done.stderr
    assert machine.unit.exists()
    assert machine.covey("install", "--no-start", "up", str(EXAMPLE), FAILS="1").returncode == 0
    status = machine.covey("status", FAILS="1")
    assert (status.returncode, "systemd doesn't answer" in status.stdout) == (1, True)


def test_what_is_not_known_to_have_stopped_is_not_removed(machine: Machine) -> None:
    machine.covey("install", "up", str(EXAMPLE))
    away = machine.covey("uninstall", "up", FAILS="1")
    assert (away.returncode, "could not be stopped" in away.stderr) == (1, True)
    assert machine.unit.exists()
    machine.covey("install", "--manager", "launchd", "up", str(EXAMPLE))
    away = machine.covey("uninstall", "--manager", "launchd", "up", FAILS="1")
    assert (away.returncode, "could not be stopped" in away.stderr) == (1, True)
    assert machine.property_list.exists()


def test_what_runs_on_without_its_file_is_stopped(machine: Machine) -> None:
    machine.covey("install", "up", str(EXAMPLE))
    machine.unit.unlink()
    (machine.home / "remembered").touch()
    gone = machine.covey("uninstall", "up", GONE="1")
    assert (gone.returncode, "stopped covey-up, whose file" in gone.stdout) == (0, True), gone.stderr
    assert not (machine.home / "remembered").exists()
    assert "nothing to do" in machine.covey("uninstall", "up").stdout
    launchd = ("--manager", "launchd", "up")
    machine.covey("install", *launchd, str(EXAMPLE))
    machine.property_list.unlink()
    gone = machine.covey("uninstall", *launchd)
    assert (gone.returncode, "stopped covey-up, whose file" in gone.stdout) == (0, True), gone.stderr
    assert not (machine.home / "loaded").exists()
    assert "nothing to do" in machine.covey("uninstall", *launchd).stdout


def test_launchd_takes_the_new_file_unless_the_service_runs(machine: Machine) -> None:
    install = ("install", "--manager", "launchd", "up", str(EXAMPLE))
    assert machine.covey(*install).returncode == 0
    loaded = machine.home / "loaded"
    assert loaded.read_text() == machine.property_list.read_text()
    running = machine.covey(*install, "--port", "9001")
    assert (running.returncode, "to take the change: `launchctl bootout" in running.stdout) == (0, True)
    assert "9001" not in loaded.read_text()
    stopped = machine.covey(*install, "--port", "9002", STOPPED="1")
    assert stopped.returncode == 0, stopped.stderr
    assert "9002" in loaded.read_text()
    removed = machine.covey("uninstall", "--manager", "launchd", "up")
    assert removed.returncode == 0, removed.stderr
    assert not loaded.exists()
    assert not machine.property_list.exists()


def test_dry_run_prints_either_managers_file_and_writes_nothing(machine: Machine) -> None:
    before = sorted(machine.home.rglob("*"))
    for manager, words in (("systemd", "KillMode=process"), ("launchd", "<key>AbandonProcessGroup</key>")):
        done = machine.covey("install", "--dry-run", "--manager", manager, "up", str(EXAMPLE))
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    left = [path for path in machine.home.rglob("*") if path not in before and path.name != "calls"]
    assert left == []


def test_a_token_goes_by_a_file_and_never_by_the_command_line_or_environment(machine: Machine) -> None:
    bare = machine.covey("install", "join", "https://127.0.0.1:1", COVEY_TOKEN=TOKEN)
    assert bare.returncode == 2
    assert "give `--token-file FILE`" in bare.stderr
    (machine.home / ".local" / "state" / "covey" / "agent").mkdir(parents=True)
    (machine.home / ".local" / "state" / "covey" / "agent" / "certificate.pem").write_text("of no use")
    for role in (("join", "https://127.0.0.1:1"), ("agent", "--controller", "https://127.0.0.1:1")):
        useless = machine.covey("install", *role)
        assert (useless.returncode, "give `--token-file FILE`" in useless.stderr) == (2, True)
    shown = machine.covey("install", "agent", "--controller", "https://127.0.0.1:1", "--name", TOKEN)
    assert shown.returncode == 2
    assert "must not be on a command line" in shown.stderr
    (machine.home / "token").write_text(TOKEN)
    (machine.home / "token").chmod(0o600)
    done = machine.covey("install", "join", "https://127.0.0.1:1", "--token-file", "token", COVEY_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    for path in machine.home.rglob("*"):
        if path.is_file() and path.name != "token":
            assert TOKEN not in path.read_text(errors="replace")
    for said in (bare, shown, done):
        assert TOKEN.split(".")[1] not in said.stdout + said.stderr
    assert f"--token-file {machine.home}/token" in machine.unit.with_name("covey-join.service").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "/nowhere"), "must be a folder or a file"),
        (("up", str(EXAMPLE), "--port", "0"), "is not in the range"),
        (("up", str(EXAMPLE), "--frob"), "No such option"),
        (("join", "http://127.0.0.1:1", "--token-file", "bin/systemctl"), "must be 'https://HOST:PORT'"),
        (("join", "https://127.0.0.1:1", "--token-file", "nowhere"), "there is no file"),
        (("agent", "--controller", "https://127.0.0.1:1", "--lifeline", "3"), "belongs to a parent"),
        (("gateway", "--table", "t.json", "--listen", "nowhere"), "must be HOST:PORT"),
        (("controller", "--source", "/nowhere"), "must be a folder or a file"),
        (("keeper",), "is not one of"),
        (("--run-as", "me", "up", str(EXAMPLE)), "with --system only"),
        (("--system", "--run-as", "no-such-one", "up", str(EXAMPLE)), "this machine has no user 'no-such-one'"),
        (("--system", "--manager", "launchd", "up", str(EXAMPLE)), "an agent of the user only"),
    ],
)
def test_what_the_role_would_not_take_is_refused_before_anything_is_written(
    machine: Machine, arguments: tuple[str, ...], words: str
) -> None:
    done = machine.covey("install", *arguments)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert not (machine.home / ".config").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("controller", "--source", ".", "--state=state"), ["--source", "{home}", "--state", "{home}/state"]),
        (
            ("gateway", "--table", "t.json", "--image-host", "a=b"),
            ["--table", "{home}/t.json", "--image-host", "a=b", "--state", "{home}/.local/state/covey"],
        ),
        (
            ("gateway", "--table=t.json", "--state=/s", "--tls-cert", "c.pem", "--tls-key=k.pem", "--access-log", "a"),
            ["/s", "--tls-cert", "{home}/c.pem", "--tls-key", "{home}/k.pem", "--access-log", "{home}/a"],
        ),
        (
            ("gateway", "--table=t.json", "--state=/s", "--access-log", "-"),
            ["--state", "/s", "--access-log", "-"],
        ),
    ],
)
def test_paths_of_parts_are_absolute(machine: Machine, arguments: tuple[str, ...], expected: list[str]) -> None:
    done = machine.covey("install", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("ExecStart=")]
    assert line.endswith(" ".join(word.format(home=machine.home) for word in expected))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs a service for another user")
def test_what_the_services_own_user_could_not_use_is_told_before_it_starts() -> None:
    install = ("install", "--dry-run", "--system", "--run-as", "nobody")
    with tempfile.TemporaryDirectory(prefix="kn") as name:
        machine = Machine(Path(name))
        machine.home.chmod(0o755)
        token, state = machine.home / "token", machine.home / "state"
        token.write_text(TOKEN)
        token.chmod(0o600)
        join = (*install, "join", "https://127.0.0.1:1", "--token-file", str(token))
        unreadable = machine.covey(*join)
        assert (unreadable.returncode, f"'nobody' can't read '{token}'" in unreadable.stderr) == (2, True)
        shutil.chown(token, "nobody")
        assert machine.covey(*join).returncode == 0
        elsewhere = (*install, "up", str(EXAMPLE), "--state", str(state))
        missing = machine.covey(*elsewhere)
        assert (missing.returncode, f"'{state}' must be a folder of 'nobody'" in missing.stderr) == (2, True)
        state.mkdir(mode=0o700)
        assert machine.covey(*elsewhere).returncode == 2
        shutil.chown(state, "nobody")
        made = machine.covey(*elsewhere)
        assert made.returncode == 0, made.stderr
        assert "CacheDirectory=covey" in made.stdout


def test_a_read_only_folder_is_told(machine: Machine) -> None:
    if os.geteuid() == 0:
        (machine.home / ".config").write_text("a file in its place")
    else:
        (machine.home / ".config").mkdir(mode=0o500)
    done = machine.covey("install", "--no-start", "up", str(EXAMPLE))
    assert done.returncode == 1
    assert str(machine.home / ".config") in done.stderr
