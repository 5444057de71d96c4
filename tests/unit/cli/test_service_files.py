"""A service's files: what systemd and launchd are told, and what of them is people's own."""

import json
import plistlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from covey.service.files import Written, create_environment_file, write_service_file
from covey.service.launch import MAX_LOG_BYTES, admit_start, forget_starts, parse_environment
from covey.service.sealed import Hand, find_state, judge_hand
from covey.service.unit import HOT_SECONDS, HOT_STARTS, Service, find_log, quote_systemd, render_launchd, render_systemd
from covey_agent.keeper.group import LEAF


def service(**fields: object) -> Service:
    defaults: dict[str, object] = {
        "role": "join",
        "command": ("/opt/covey/bin/covey", "join", "https://c:1", "--state", "/s"),
        "state": Path("/s"),
        "environment_file": Path("/c/join.env"),
    }
    return Service(**(defaults | fields))  # pyright: ignore[reportArgumentType] - a builder


def test_unit_leaves_engines_alone_and_tells_a_crash_from_a_stop() -> None:
    lines = render_systemd(service(), 252).splitlines()
    for line in (
        "KillMode=process",
        "Delegate=yes",
        "OOMPolicy=continue",
        "Restart=on-failure",
        f"StartLimitBurst={HOT_STARTS}",
        f"StartLimitIntervalSec={HOT_SECONDS}",
        "RestartSec=10",
        "WantedBy=default.target",
    ):
        assert line in lines
    assert not any("RestartSteps" in line or "PreventExit" in line or line.startswith("User=") for line in lines)


def test_delays_grow_where_systemd_knows_how() -> None:
    lines = render_systemd(service(), 256).splitlines()
    assert {"RestartSteps=8", "RestartMaxDelaySec=60", "RestartSec=2"} <= set(lines)


def test_service_is_in_a_group_of_its_own_beside_its_engines_where_systemd_can() -> None:
    assert f"DelegateSubgroup={LEAF}" in render_systemd(service(), 254).splitlines()
    assert "DelegateSubgroup" not in render_systemd(service(), 252)


def test_ten_tries_fit_into_the_time_in_which_they_are_counted() -> None:
    """Else a loop would never be stopped: by fixed delays, and by those that grow (2 s to 60 s in eight steps)."""
    growing = [2 * 30 ** (min(step, 8) / 8) for step in range(HOT_STARTS)]
    assert sum(growing) < HOT_SECONDS
    assert 10 * HOT_STARTS < HOT_SECONDS


def test_system_unit_has_its_user_and_waits_for_the_network() -> None:
    made = service(is_system=True, run_as="covey", state=Path("/var/lib/covey"))
    lines = render_systemd(made, 252).splitlines()
    assert {"User=covey", "WantedBy=multi-user.target", "StateDirectory=covey", "After=network-online.target"} <= set(
        lines
    )


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain-1.2:/x", "plain-1.2:/x"),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", '"$$HOME"'),
        ('a"b', '"a\\"b"'),
        ("back\\slash", '"back\\\\slash"'),
        ("", '""'),
        ("läma", '"läma"'),
    ],
)
def test_no_word_is_split_or_expanded(word: str, quoted: str) -> None:
    assert quote_systemd(word) == quoted


def test_a_line_break_in_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="one line of printable text"):
        quote_systemd("a\nExecStartPre=/bin/evil")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("is_system", [False, True])
def test_systemd_takes_the_unit_whatever_its_words_are(tmp_path: Path, is_system: bool) -> None:
    program = tmp_path / 'a "b" $HOME 100% c'
    program.mkdir()
    command = (sys.executable, "up", str(program), "--state", str(program))
    made = service(command=command, environment_file=program / "up.env", is_system=is_system)
    path = tmp_path / "covey-up.service"
    path.write_text(render_systemd(made, 252))
    scope = () if is_system else ("--user",)
    (tmp_path / "run").mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", *scope, "verify", "--man=no", str(path)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "covey-up.service" not in done.stderr  # its complaints name the unit


def test_launchd_gets_a_property_list_that_says_the_same() -> None:
    text = render_launchd(service(command=("/bin/covey", "join", "a & <b>")), "/usr/bin/python3")
    found = plistlib.loads(text.encode())
    assert found["Label"] == "dev.covey.join"
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["AbandonProcessGroup"] is True
    assert found["ThrottleInterval"] == 10
    assert found["SoftResourceLimits"] == {"NumberOfFiles": 8192}
    assert found["RunAtLoad"] is True
    arguments = found["ProgramArguments"]
    assert arguments[:3] == ["/usr/bin/python3", "-m", "covey.service.launch"]
    assert arguments[arguments.index("--") + 1 :] == ["/bin/covey", "join", "a & <b>"]
    assert set(found) <= LAUNCHD_KEYS


def test_a_manager_waits_as_long_as_the_gateway_lets_answers_end() -> None:
    assert "\nTimeoutStopSec=30\n" in render_systemd(service(), 252)
    patient = service(command=("/bin/covey", "up", "--drain-seconds", "90", "/f"))
    assert "\nTimeoutStopSec=110\n" in render_systemd(patient, 252)
    assert plistlib.loads(render_launchd(patient, "/usr/bin/python3").encode())["ExitTimeOut"] == 110


# Of `man 5 launchd.plist`: a key that it doesn't know is a typo.
LAUNCHD_KEYS = {
    *("Label", "ProgramArguments", "EnvironmentVariables", "RunAtLoad", "KeepAlive", "ThrottleInterval"),
    *(
        "ExitTimeOut",
        "SoftResourceLimits",
        "AbandonProcessGroup",
        "ProcessType",
        "StandardErrorPath",
        "StandardOutPath",
        "Umask",
    ),
}


@pytest.mark.parametrize(
    "text", [render_systemd(service(), 252), render_launchd(service(), "/usr/bin/python3")], ids=["systemd", "launchd"]
)
def test_a_hand_is_seen_in_either_file(text: str) -> None:
    assert judge_hand(text) is Hand.OURS
    assert find_state(text) == "/s"
    assert judge_hand(text.replace("https://c:1", "https://c:2")) is Hand.EDITED
    assert judge_hand(text + "\n") is Hand.EDITED
    assert judge_hand("[Service]\nExecStart=/bin/true\n") is Hand.EDITED
    assert find_state("no such thing") == ""


def test_what_was_edited_is_kept_and_what_is_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "units" / "covey-join.service"
    first, second = render_systemd(service(), 252), render_systemd(service(), 256)
    assert write_service_file(path, first, is_forced=False) is Written.CREATED
    assert write_service_file(path, first, is_forced=False) is Written.UNCHANGED
    assert write_service_file(path, second, is_forced=False) is Written.CHANGED
    path.write_text(path.read_text().replace("RestartSec=2", "RestartSec=3"))
    edited = path.read_text()
    assert write_service_file(path, first, is_forced=False) is Written.KEPT
    assert path.read_text() == edited
    assert write_service_file(path, first, is_forced=True) is Written.CHANGED
    assert path.read_text() == first
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_variables_are_private_made_once_and_never_written_again(tmp_path: Path) -> None:
    path = tmp_path / "covey" / "join.env"
    assert create_environment_file(path, {"PATH": "/opt/homebrew/bin:/bin"}, is_system=False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert parse_environment(path.read_text()) == {"PATH": "/opt/homebrew/bin:/bin"}
    path.write_text("HF_TOKEN=mine\n")
    assert not create_environment_file(path, {"PATH": "/bin"}, is_system=False)
    assert path.read_text() == "HF_TOKEN=mine\n"


def test_a_link_in_the_place_of_variables_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "join.env").symlink_to(target)
    assert not create_environment_file(tmp_path / "join.env", {}, is_system=False)
    assert not target.exists()


def test_a_systems_service_gets_no_folders_of_a_user(tmp_path: Path) -> None:
    create_environment_file(tmp_path / "up.env", {"PATH": "/home/mallory/bin"}, is_system=True)
    assert "mallory" not in (tmp_path / "up.env").read_text()


def test_variables_are_read_as_systemd_reads_them() -> None:
    text = "# A=1\n; B=1\nC=two words\nD=\"quoted\"\nE='x=y'\n F = f \n1G=no\nnothing\nH=\n"
    assert parse_environment(text) == {"C": "two words", "D": "quoted", "E": "x=y", "H": ""}


def test_a_loop_of_starts_ends_and_begins_anew_later_or_by_a_person(tmp_path: Path) -> None:
    now = 1_000_000.0
    for second in range(HOT_STARTS):
        assert admit_start(tmp_path, "up", now + second)
    assert not admit_start(tmp_path, "up", now + HOT_STARTS)
    assert admit_start(tmp_path, "agent", now + HOT_STARTS), "each service has its own count"
    assert admit_start(tmp_path, "up", now + HOT_SECONDS + 1)
    for second in range(HOT_STARTS):
        admit_start(tmp_path, "up", now + HOT_SECONDS + second)
    forget_starts(tmp_path, "up")
    assert admit_start(tmp_path, "up", now + HOT_SECONDS + HOT_STARTS)


def test_a_clock_that_was_set_back_stops_no_service(tmp_path: Path) -> None:
    for _ in range(HOT_STARTS):
        admit_start(tmp_path, "up", 2_000_000.0)
    assert admit_start(tmp_path, "up", 1_000_000.0)


def test_the_launcher_becomes_the_command_until_it_is_a_loop(tmp_path: Path) -> None:
    variables = tmp_path / "up.env"
    variables.write_text("GREETING=hello\n")
    state = tmp_path / "state"
    command = [sys.executable, "-m", "covey.service.launch", "up", str(variables), str(state), "--"]
    shell = ["/bin/sh", "-c", 'echo "$GREETING $0"; exit 3', "a b"]
    done = subprocess.run([*command, *shell], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "hello a b\n")
    for _ in range(HOT_STARTS):
        admit_start(state, "up", time.time())
    done = subprocess.run([*command, *shell], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "it stays down" in done.stderr


@pytest.mark.parametrize("content", [b"HF_TOKEN=pa55word\xff\n", b"A=pa55\0word\n"])
def test_variables_that_cannot_be_read_are_told_and_are_no_loop_without_end(tmp_path: Path, content: bytes) -> None:
    variables = tmp_path / "up.env"
    variables.write_bytes(content)
    state = tmp_path / "state"
    command = [sys.executable, "-m", "covey.service.launch", "up", str(variables), str(state), "--", "/bin/true"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (first.returncode, "pa55" in first.stderr) == (1, False)
    assert f"'{variables}' must be text in UTF-8" in first.stderr
    assert len(json.loads((state / "service-starts-up.json").read_text())) == 1
    for _ in range(HOT_STARTS - 1):
        admit_start(state, "up", time.time())
    last = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (last.returncode, "it stays down" in last.stderr) == (0, True)


def test_a_log_that_is_large_at_a_start_goes_beside_itself_once(tmp_path: Path) -> None:
    log = find_log(tmp_path, "up")
    log.parent.mkdir()
    command = [sys.executable, "-m", "covey.service.launch", "up", str(tmp_path / "no.env"), str(tmp_path), "--"]
    for size in (MAX_LOG_BYTES, 1):
        with log.open("ab") as file:
            file.write(b"x" * size)
            file.flush()
            shell = ["/bin/sh", "-c", "echo out; echo err >&2"]
            subprocess.run([*command, *shell], stdout=file, stderr=file, timeout=60, check=True)
    assert log.read_text() == "out\nerr\n"
    assert log.with_suffix(".log.1").stat().st_size == MAX_LOG_BYTES + len("out\nerr\nx")


def test_each_folder_of_a_system_service_is_made_where_it_is_the_usual_one() -> None:
    command = ("/opt/covey/bin/covey", "up", "/s", "--cache", "/var/cache/covey")
    elsewhere = render_systemd(service(is_system=True, run_as="u", command=command, state=Path("/srv/c")), 252)
    assert "CacheDirectory=covey" in elsewhere
    assert "StateDirectory" not in elsewhere
    usual = render_systemd(service(is_system=True, command=command[:3], state=Path("/var/lib/covey")), 252)
    assert "StateDirectory=covey" in usual
    assert "CacheDirectory" not in usual
