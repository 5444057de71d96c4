"""`covey fit` on files, with nothing running."""

import json
from pathlib import Path

from click.testing import CliRunner
from covey.commands.fit import fit
from covey.errors import CommandError, ExitCode
from kit.gguf import Shape, build_model


def run(*arguments: str) -> str:
    result = CliRunner().invoke(fit, arguments, catch_exceptions=True)
    if isinstance(result.exception, Exception):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments: str) -> CommandError:
    result = CliRunner().invoke(fit, arguments)
    assert isinstance(result.exception, CommandError), result.output
    return result.exception


def test_file_is_read_by_its_header_alone(tmp_path: Path) -> None:
    made = build_model(Shape(context=4096))
    path = tmp_path / "m.gguf"
    made.write(path)
    answer = json.loads(run(str(path), "-o", "json", "--context", "2048", "--memory", "4Gi"))
    assert answer["contextTokens"] == 2048
    processor = answer["lanes"][0]
    assert processor["pools"][0]["weightsBytes"] >= made.tensor_bytes
    assert processor["ceilingTokens"] == 4096
    assert "largest window in 4.0 GiB of pool Host: 4096 tokens" in run(path.as_uri(), "--memory", "4Gi")


def test_little_memory_says_that_it_does_not_fit(tmp_path: Path) -> None:
    path = build_model(Shape()).write(tmp_path / "m.gguf")
    assert "does not fit into 1.0 MiB of pool Host" in run(str(path), "--memory", "1Mi")


def test_what_can_not_be_read_is_refused_with_words(tmp_path: Path) -> None:
    page = tmp_path / "m.gguf"
    page.write_text("<!DOCTYPE html><html>log in</html>")
    assert "it is an HTML page" in str(refusal(str(page)))
    assert "No such file" in str(refusal(str(tmp_path / "none.gguf")))
    wrong = refusal("hf://a/b")
    assert wrong.code is ExitCode.WRONG_USE
    assert "source must be 'pypi://" in str(wrong)
    whole = build_model(Shape(context=4096)).write(tmp_path / "whole.gguf")
    assert "`--context` must be at most 4096" in str(refusal(str(whole), "--context", "8192"))
