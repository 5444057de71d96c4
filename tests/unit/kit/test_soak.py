"""What a soak does to its fleets, and its page; the soak itself is `make soak`."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kit.chaos import can_cut, cut
from soak import story as story_module
from soak.__main__ import main
from soak.report import render_report
from soak.story import FLEETS, Story, render_placement, write_models

_HOLD = """
import socket, sys
held = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_cut_ends_the_connections_of_that_process_alone() -> None:
    if not can_cut():
        pytest.skip("needs root, `ss`, and a kernel that destroys sockets")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", _HOLD, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            theirs, _ = server.accept()
            with theirs, socket.create_connection(server.getsockname()) as client, server.accept()[0] as ours:
                cut(child.pid)
                theirs.settimeout(30)
                with pytest.raises(ConnectionError):
                    theirs.recv(1)
                client.sendall(b"x")
                ours.settimeout(30)
                assert ours.recv(1) == b"x"
            child.communicate(timeout=30)


def test_each_model_of_a_soak_has_its_placement(tmp_path: Path) -> None:
    for models in FLEETS.values():
        write_models(tmp_path, models)
        for name in models:
            (model,) = yaml.safe_load_all((tmp_path / f"{name}.model.yaml").read_text())
            (placement,) = yaml.safe_load_all((tmp_path / f"{name}.yaml").read_text())
            assert (model["metadata"]["name"], placement["spec"]["modelRef"]["name"]) == (name, name)
            assert placement["metadata"]["name"] == name
    edited = yaml.safe_load(render_placement("third", {"context": "{tokens: 2048}", "replicas": 2}))
    assert edited["spec"] == {"modelRef": {"name": "third"}, "context": {"tokens": 2048}, "replicas": 2}


def test_page_says_first_whether_it_holds_and_how_to_do_it_again() -> None:
    story = Story(seed=7, seconds=600.0)
    assert "**It did not come to its end.**" in render_report(story, 0.0)
    story.is_over = True
    page = render_report(story, 0.0)
    assert "`make soak MINUTES=10 SEED=7`, 1970-01-01 00:00 UTC" in page
    assert "**It holds.**" in page
    story.findings = [f"fleet a: lost {number}" for number in range(50)]
    page = render_report(story, 0.0)
    assert "**50 findings.**" in page
    assert "- fleet a: lost 3\n" in page
    assert len(page.splitlines()) < 60


@pytest.mark.parametrize(
    "error", [OSError("no port is free"), AssertionError("it never converged"), KeyboardInterrupt()]
)
def test_a_soak_that_ended_early_does_not_hold_and_says_why(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise error

    page = tmp_path / "soak.md"
    monkeypatch.setattr(story_module, "running_fleet", fail)
    monkeypatch.setattr("sys.argv", ["soak", "--minutes", "1", "--seed", "7", "--page", str(page)])
    with pytest.raises(type(error)):
        main()
    assert "holds" not in page.read_text()
    assert f"- ended early: {type(error).__name__}: {error}\n" in page.read_text()
