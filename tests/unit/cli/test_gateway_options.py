"""What `covey up` and `covey join` hand to their gateway, and what they refuse before anything starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.commands.join import join
from covey.commands.up import up
from covey.service.roles import render_arguments
from covey.up.joined import JoinSettings
from covey.up.parent import Settings

FLAGS = ("--tls-cert", "/a.crt", "--tls-key", "/a.key", "--cors-origin", "https://app.example")


def refused(*arguments: str) -> str:
    answer = CliRunner().invoke(up if arguments[0] != "https://h:1" else join, list(arguments))
    assert answer.exit_code in (1, 2)
    assert answer.exception is not None
    return answer.output + str(answer.exception)


def test_the_gateway_gets_its_flags_and_is_told_of_by_its_scheme(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path, None, 52415, allow_empty=False, gateway_flags=FLAGS)
    assert settings.gateway_url == "https://127.0.0.1:52415"
    assert Settings(tmp_path, tmp_path, None, 1, allow_empty=False).gateway_url == "http://127.0.0.1:1"
    joined = JoinSettings("https://h:1", tmp_path, None, "", "127.0.0.1:5", is_open=False, gateway_flags=FLAGS)
    assert joined.gateway_url == "https://127.0.0.1:5"
    assert joined.gateway_arguments()[-6:] == list(FLAGS)


def test_what_a_gateway_would_refuse_is_refused_before_anything_starts(tmp_path: Path) -> None:
    source = str(tmp_path)
    assert "an origin must be like" in refused(source, "--cors-origin", "app.example")
    assert "only where a key is needed" in refused(source, "--cors-origin", "*")
    assert "must be given together" in refused(source, "--tls-cert", str(tmp_path / "a.crt"))
    words = refused(source, "--tls-cert", str(tmp_path / "a.crt"), "--tls-key", str(tmp_path / "a.key"))
    assert "`--tls-cert` must be a readable file" in words
    assert "must be http://HOST:PORT" in refused(source, "--otlp-endpoint", "collector")
    assert "must be HOST:PORT" in refused(source, "--metrics-listen", "9411")
    assert "--no-gateway starts none" in refused("https://h:1", "--no-gateway", "--cors-origin", "https://app.example")


@pytest.mark.parametrize("role", ["up", "join"])
def test_a_service_has_each_of_several_origins_and_whole_paths(role: str, tmp_path: Path) -> None:
    place = str(tmp_path) if role == "up" else "https://h:1"
    given = ["--cors-origin", "https://a.example", "--cors-origin", "https://b.example", "--tls-cert", "a.crt", place]
    found = render_arguments(role, given, tmp_path, Path("/state"), Path("/cache"))
    origins = [found[index + 1] for index, word in enumerate(found) if word == "--cors-origin"]
    assert origins == ["https://a.example", "https://b.example"]
    assert found[found.index("--tls-cert") + 1] == str(tmp_path / "a.crt")
