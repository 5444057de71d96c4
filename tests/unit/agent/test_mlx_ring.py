"""What ranks of a ring take of each other."""

import json
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from covey_agent.engines.servers.mlx_ring import Requests, RingLost, is_ring_lost
from covey_agent.engines.servers.mlx_weights import INDEX, list_weights


@dataclass
class Asked:
    prompt: str


Asked.__module__ = "mlx_lm.server"


def library() -> Any:
    made: Any = ModuleType("mlx_lm.server")
    made.Asked = Asked
    made.os = os
    return made


class Evil:
    def __reduce__(self) -> Any:
        return os.getpid, ()


def test_requests_and_plain_values_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = library()
    for name, module in (("mlx_lm", ModuleType("mlx_lm")), ("mlx_lm.server", made)):
        monkeypatch.setitem(sys.modules, name, module)
    requests = Requests(made)
    for told in ((Asked("hello"), {"a": [1, 2.5, None]}), [3, 4]):
        assert requests.loads(bytearray(requests.dumps(told))) == told


@pytest.mark.parametrize(
    "told", [Evil(), [Evil()], os.getcwd, pytest.raises], ids=["call", "in a list", "name", "class"]
)
def test_code_that_another_rank_sends_is_refused(told: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="which is no part of a request"):
        Requests(library()).loads(pickle.dumps(told))


def test_what_mlx_says_of_lost_connections_is_known_from_failures_of_its_own() -> None:
    assert is_ring_lost(RuntimeError("[ring] connection to a peer was lost"))
    assert is_ring_lost(RingLost("rank 0 failed to find its ring"))
    assert not is_ring_lost(RuntimeError("[malloc] unable to allocate"))


def write_tensors(path: Path, *names: str) -> None:
    head = json.dumps({"__metadata__": {"format": "mlx"}} | {name: {} for name in names}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)


def test_a_checkpoint_without_a_list_of_its_weights_is_given_one_outside_of_itself(tmp_path: Path) -> None:
    model, home = tmp_path / "model", tmp_path / "home"
    model.mkdir()
    home.mkdir()
    write_tensors(model / "model.safetensors", "layers.0.w", "norm")
    (model / "config.json").write_text("{}")
    for _ in range(2):  # of an earlier start there may be one
        made = list_weights(model, home)
        assert json.loads((made / INDEX).read_text())["weight_map"] == {
            "layers.0.w": "model.safetensors",
            "norm": "model.safetensors",
        }
        assert {each.name for each in made.iterdir()} == {"model.safetensors", "config.json", INDEX}
        assert (made / "config.json").read_text() == "{}"
    assert not (model / INDEX).exists()
    (model / INDEX).write_text("{}")
    assert list_weights(model, home) == model
