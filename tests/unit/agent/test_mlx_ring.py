"""What ranks of a ring take of each other."""

import os
import pickle
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from covey_agent.engines.servers.mlx_ring import Requests, RingLost, is_ring_lost


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
