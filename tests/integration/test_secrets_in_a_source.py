"""Encrypted Secrets in the source of a controller process: accepted with a key, and nowhere to be seen."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from covey.control import Control
from covey.documents import Documents
from covey.errors import CommandError
from kit.documents import model_yaml
from kit.fleet import is_leading, wait_until

pytestmark = pytest.mark.integration

FIXTURES = Path(__file__).parents[1] / "unit" / "files" / "secrets"
PLAIN = (b"hunter2", b"aHVudGVyMg", b"hf_not-a-real-token")


@pytest.fixture
def base() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cv"))  # short: Unix sockets live below it
    (folder / "source").mkdir()
    (folder / "source" / "model.yaml").write_text(model_yaml())
    shutil.copy(FIXTURES / "regex.yaml", folder / "source" / "hub.yaml")
    shutil.copyfile(FIXTURES / "test-only.key", folder / "key")
    (folder / "key").chmod(0o600)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(base: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "covey_controller",
        "--source",
        str(base / "source"),
        "--state",
        str(base / "state"),
    ]
    with (base / "log").open("ab") as log:
        return subprocess.Popen([*command, "--fleet-listen", "127.0.0.1:0", *flags], stderr=log)


def covey(base: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "covey", *arguments, "--state", str(base / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_secret_is_accepted_with_a_key_and_shown_nowhere(base: Path) -> None:
    with start(base, "--age-key-file", str(base / "key")) as controller, Control(base / "state") as control:
        wait_until(lambda: is_leading(base / "state"), "the controller is ready")
        wait_until(lambda: control.get_source()["applied"], "the set is in force")
        assert control.get_source()["errors"] == []
        assert [item["metadata"]["name"] for item in control.list_objects("models")] == ["smollm2"]
        text = (FIXTURES / "whole.yaml").read_text()
        with pytest.raises(CommandError, match="must be given once"):
            control.apply_documents(Documents((("twice", f"{text}---\n{text}"),)), "default")
        shown = [covey(base, "get", "models", "-o", "yaml"), covey(base, "export"), covey(base, "get", "source")]
        assert "Secret" not in shown[1]
        # A broken value is refused by name; the document is as damaged as it is secret.
        broken = (base / "source" / "hub.yaml").read_text().replace("number: ENC", "nummer: ENC")
        (base / "source" / "hub.yaml").write_text(broken)
        wait_until(lambda: control.get_source()["errors"], "the damage is found")
        shown.append(covey(base, "get", "source"))
        assert "`stringData.nummer` was changed or moved" in shown[-1]
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(timeout=20) == 0
    contents = {
        path: path.read_bytes() for path in [base / "log", *base.joinpath("state").rglob("*")] if path.is_file()
    }
    assert any(path.suffix == ".sqlite" for path in contents)
    for word in PLAIN:
        assert [path for path, content in contents.items() if word in content] == []
        assert not any(word.decode() in text for text in shown)


def test_without_a_key_the_set_is_refused_and_says_what_to_do(base: Path) -> None:
    with start(base) as controller, Control(base / "state") as control:
        wait_until(lambda: is_leading(base / "state"), "the controller is ready")
        wait_until(lambda: control.get_source()["errors"], "the set is refused")
        (error,) = control.get_source()["errors"]
        assert error["file"] == "hub.yaml"
        assert "start with `--age-key-file FILE`" in error["message"]
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--source", "git+https://ada:hunter2@forge.example/f"), "must not hold a user or password"),
        (("--source", ".", "--push"), "must be given with a git source only"),
        (("--source", "git+file:///f", "--poll-seconds", "0"), "`--poll-seconds` must be 1 to 86400"),
        (("--source", ".", "--webhook-listen", "127.0.0.1:1"), "must be given together"),
        (("--source", ".", "--age-key-file", "/nowhere"), "`--age-key-file`"),
    ],
)
def test_wrong_flags_end_the_controller_with_words(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "covey_controller", *flags, "--state", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "hunter2" not in done.stderr
