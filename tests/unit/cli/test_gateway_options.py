"""What `covey up` and `covey join` hand to their gateway, and what they refuse before anything starts."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.commands.gateway_options import DRAIN_SECONDS, find_drain_seconds
from covey.commands.join import join
from covey.commands.up import up
from covey.errors import CommandError
from covey.service.roles import render_arguments
from covey.up.joined import JoinSettings
from covey.up.parent import Settings
from covey_gateway import limits

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
    assert "a file that can be written" in refused(source, "--access-log", str(tmp_path / "none" / "log"))
    assert "--workers" in refused(source, "--workers", "0")
    assert "--drain-seconds" in refused(source, "--drain-seconds", "3601")
    assert "--no-gateway starts none" in refused("https://h:1", "--no-gateway", "--workers", "2")
    shown = ("https://h:1", "--listen", "0.0.0.0:5", "--insecure", "--cors-origin", "*")
    assert "only where a key is needed" in refused(*shown)
    assert "`--metrics-listen` must be HOST:PORT" in refused("https://h:1", "--metrics-listen", "9411")
    for listen in ("garbage", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", ":"):
        assert "HOST:PORT" in refused("https://h:1", "--listen", listen)
    assert "--no-gateway starts none" in refused("https://h:1", "--no-gateway", "--metrics-listen", "127.0.0.1:9411")
    assert "--no-gateway starts none" in refused("https://h:1", "--no-gateway", "--cors-origin", "https://app.example")


def test_who_stops_a_gateway_knows_how_long_it_may_take() -> None:
    assert DRAIN_SECONDS == limits.DRAIN_SECONDS
    assert find_drain_seconds(FLAGS) == DRAIN_SECONDS
    assert find_drain_seconds((*FLAGS, "--drain-seconds", "0")) == 0
    assert find_drain_seconds(("covey", "up", "--drain-seconds=90", "folder")) == 90


@pytest.mark.parametrize("role", ["up", "join"])
def test_a_service_has_each_of_several_origins_and_whole_paths(role: str, tmp_path: Path) -> None:
    place = str(tmp_path) if role == "up" else "https://h:1"
    given = [
        "--cors-origin",
        "https://a.example",
        "--cors-origin",
        "https://b.example",
        "--access-log",
        "a.log",
        "--workers",
        "2",
        "--drain-seconds",
        "0",
        place,
    ]
    found = render_arguments(role, given, tmp_path, Path("/state"), Path("/cache"))
    origins = [found[index + 1] for index, word in enumerate(found) if word == "--cors-origin"]
    assert origins == ["https://a.example", "https://b.example"]
    assert found[found.index("--access-log") + 1] == str(tmp_path / "a.log")
    assert found[found.index("--workers") + 1] == "2"
    assert found[found.index("--drain-seconds") + 1] == "0"
    for flags in (["--tls-cert", "a.crt"], ["--tls-cert", "a.crt", "--tls-key", "a.key"]):
        with pytest.raises(CommandError, match="tls-cert"):
            render_arguments(role, [*flags, place], tmp_path, Path("/state"), Path("/cache"))


def test_a_receiver_of_spans_is_refused_where_the_extra_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert "covey-gateway[otlp]" in refused(str(tmp_path), "--otlp-endpoint", "http://127.0.0.1:4318")
