"""`covey fit` on files, with nothing running."""

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.commands.fit import fit
from covey.errors import CommandError, ExitCode
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model, build_set

# The package's attribute of this name is the command itself.
fit_module = importlib.import_module("covey.commands.fit")


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
    wrong = refusal("store://a/b")
    assert wrong.code is ExitCode.WRONG_USE
    assert "source must be 'hf://" in str(wrong)
    whole = build_model(Shape(context=4096)).write(tmp_path / "whole.gguf")
    assert "`--context` must be at most 4096" in str(refusal(str(whole), "--context", "8192"))


def test_model_over_several_files_is_read_whole_by_any_of_them(tmp_path: Path) -> None:
    shape = Shape(layers=6)
    files = build_set(shape, 3)
    paths = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for path, file in zip(paths, files, strict=True):
        file.write(path)
    alone = build_model(shape).write(tmp_path / "whole.gguf")
    told, of_set = (json.loads(run(str(path), "-o", "json")) for path in (alone, paths[1]))
    assert of_set["parameters"] == told["parameters"]
    assert of_set["lanes"] == told["lanes"]
    paths[2].unlink()
    assert "must have all 3 files of the model; it lacks 'm-00003-of-00003.gguf'" in str(refusal(str(paths[0])))


def test_file_of_a_set_under_another_name_is_refused(tmp_path: Path) -> None:
    path = build_set(Shape(layers=6), 3)[0].write(tmp_path / "m.gguf")
    assert "`split.count` says that the model has 3 files; got 1 of them" in str(refusal(str(path)))


def test_folder_of_safetensors_says_weights_and_cache(tmp_path: Path) -> None:
    folder = build_checkpoint(Shape(layers=3), files=3).write(tmp_path)
    answer = json.loads(run(str(folder), "-o", "json", "--context", "2048", "--slots", "2"))
    assert answer["kvCacheBytes"] == 2 * 2048 * 3 * 2 * (32 + 32) * 2
    assert answer["weightsBytes"] == answer["parameters"] * 2
    assert [(lane["engine"], lane["compute"]) for lane in answer["lanes"]] == [
        ("Mlx", "Metal"),
        ("Vllm", "Cpu"),
    ]
    assert answer["lanes"][0]["pools"][0]["weightsBytes"] >= answer["weightsBytes"]
    text = run(str(folder / "config.json"))
    assert "Mlx on Apple Silicon (Metal):" in text
    assert "LlamaServer" not in text, "it runs no safetensors"


def test_checkpoint_that_lacks_a_file_or_lies_is_refused(tmp_path: Path) -> None:
    build_checkpoint(Shape(layers=3), files=3, vocab_size=77).write(tmp_path)
    assert "`vocab_size` must be 1024, as the embedding has rows; got 77" in str(refusal(str(tmp_path)))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "has no 'model-00002-of-00003.safetensors', which must be there" in str(refusal(str(tmp_path)))
    (tmp_path / "config.json").unlink()
    assert "has no 'config.json'" in str(refusal(str(tmp_path)))


def test_draft_counts_beside_its_model(tmp_path: Path) -> None:
    model, small = (build_model(Shape(layers=layers)).write(tmp_path / f"{layers}.gguf") for layers in (8, 2))
    alone, both = (
        json.loads(run(str(model), "-o", "json", "--memory", "4Gi", *more))["lanes"][0]
        for more in ((), ("--draft", str(small)))
    )
    assert alone["draftPools"] == []
    assert both["pools"] == alone["pools"]
    assert 0 < both["draftPools"][0]["kvCacheBytes"] < both["pools"][0]["kvCacheBytes"]
    assert "draft in Host" in run(str(model), "--draft", str(small))
    little = str((alone["pools"][0]["totalBytes"] + 2**20) // 2**20) + "Mi"
    tight = json.loads(run(str(model), "-o", "json", "--memory", little, "--draft", str(small)))["lanes"][0]
    assert tight["ceilingTokens"] < alone["ceilingTokens"]


def test_device_is_told_what_a_node_would_plan_with(tmp_path: Path) -> None:
    """A tenth is left, of a small one 512 MiB."""
    path = build_model(Shape()).write(tmp_path / "m.gguf")
    assert "21.6 GiB of pool Device" in run(str(path), "--memory", "4Gi", "--device-memory", "24Gi")
    assert "1.5 GiB of pool Device" in run(str(path), "--memory", "4Gi", "--device-memory", "2Gi")
    assert "does not fit into 0 B of pool Device" in run(str(path), "--memory", "4Gi", "--device-memory", "256Mi")


def test_this_machines_memory_is_less_on_apple_silicon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(root: Path) -> tuple[int, int]:
        return 16 * 2**30, 0

    monkeypatch.setattr(fit_module, "observe_memory_bytes", observe)
    path = build_model(Shape()).write(tmp_path / "m.gguf")
    parts = [part for part in run(str(path)).split("\n\n") if "of pool Host:" in part]
    processor, apple = (part for part in parts if part.startswith("LlamaServer"))
    assert [part.partition(":")[0] for part in parts if part not in (processor, apple)] == [
        "LlamaCpp on a processor (Cpu), one sequence at a time",
        "LlamaCpp on Apple Silicon (Metal), one sequence at a time",
    ]
    assert "largest window in 15.0 GiB" in processor
    assert "largest window in 12.0 GiB" in apple
