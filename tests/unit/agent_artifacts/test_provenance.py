"""A provenance that can't be had holds up no engine."""

import asyncio
from typing import cast

import pytest
from covey_agent.artifacts.web import Transient, Web, unavailable
from covey_agent.engines.environments import PinnedFile
from covey_agent.trust.provenance import IndexProvenances
from covey_agent.trust.verifier import Verifier
from covey_simulator.virtual_time import run_virtual

FILE = PinnedFile("example", "1", "example-1-py3-none-any.whl", "a" * 64, 1)


class Index:
    """In the place of the web: it fails as it is told to."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.asked = 0

    async def read(self, *_: object) -> object:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (None, "no answer within 15 s"),
        (Transient("it answers 503"), "it answers 503"),
        (unavailable("it answers 404"), "it answers 404"),
    ],
)
def test_it_is_asked_for_once(failure: Exception | None, words: str, caplog: pytest.LogCaptureFixture) -> None:
    index = Index(failure)
    provenances = IndexProvenances(cast("Web", index), Verifier(lambda: None))
    run_virtual(provenances.check(FILE, "https://index.example/provenance"))
    assert index.asked == 1
    assert f"its pinned digest is: {words}" in caplog.text
