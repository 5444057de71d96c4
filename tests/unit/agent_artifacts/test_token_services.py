"""Where a registry may send an agent for a token: never to what listens on the agent's own machine."""

import pytest
from covey_agent.artifacts.registry import read_realm
from covey_agent.artifacts.web import Origin
from covey_agent.ports import AgentError

ORIGIN = Origin("as the registry says", "Look at the registry.", "Log in.", "not there")


@pytest.mark.parametrize(
    ("realm", "registry", "is_taken"),
    [
        ("https://auth.example/token", "registry.example", True),
        ("http://auth.example/token", "registry.example", False),
        ("http://127.0.0.1:40342/identity?x=y", "registry.example", False),
        ("https://localhost/identity", "registry.example", False),
        ("http://[::1]:5000/token", "registry.example", False),
        ("http://127.0.0.1:5001/token", "127.0.0.1", True),
        ("http://localhost:5001/token", "localhost", True),
        ("ftp://127.0.0.1/token", "127.0.0.1", False),
    ],
)
def test_a_token_service_on_this_machine_is_asked_for_a_registry_on_it_alone(
    realm: str, registry: str, is_taken: bool
) -> None:
    if is_taken:
        assert read_realm(realm, ORIGIN, registry) == realm
        return
    with pytest.raises(AgentError, match="token service"):
        read_realm(realm, ORIGIN, registry)
