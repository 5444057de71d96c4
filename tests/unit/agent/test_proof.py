"""What the smallest request met, in words that the store keeps."""

from collections.abc import AsyncGenerator

import httpx
import pytest
from covey_agent.engines.proof import MAX_ANSWER_BYTES, explain_unproven
from covey_simulator.virtual_time import run_virtual
from kit import builders


@pytest.mark.parametrize("port", [40_001, 52_417])
def test_engine_that_doesnt_listen_is_told_in_the_same_words_whatever_its_port(port: int) -> None:
    """Each attempt has another port: with it in the words, each would be another status."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as http:
            return await explain_unproven(http, builders.instance(), port, "key")

    assert run_virtual(ask()) == "nothing listens on its port"


def test_answer_without_an_end_is_cut_off() -> None:
    sent = 0

    async def pour() -> AsyncGenerator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield bytes(1 << 16)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=pour())

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            return await explain_unproven(http, builders.instance(), 1, "key")

    assert "isn't what was asked for" in run_virtual(ask())
    assert sent <= MAX_ANSWER_BYTES + (1 << 17)
