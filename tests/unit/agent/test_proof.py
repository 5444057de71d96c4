"""What the smallest request met, in words that the store keeps."""

import httpx
import pytest
from covey_agent.engines.proof import explain_unproven
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
