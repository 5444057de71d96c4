"""A gateway that others reach, beside a real controller: it waits for the first access key and says so."""

from collections.abc import Generator

import httpx
import pytest
from kit.apart import Apart, running_apart
from kit.fleet import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

HINT = "covey key create"


@pytest.fixture
def fleet() -> Generator[Apart]:
    with running_apart() as made:
        made.start_gateway(host="0.0.0.0")  # noqa: S104  (what the tests are about)
        wait_until(lambda: "no access key" in made.log("gateway"), "the gateway has a table without keys", 30)
        yield made


def ask(fleet: Apart, path: str, key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{fleet.gateway_url}{path}", headers=headers, timeout=30)


def key_of(fleet: Apart, name: str) -> str:
    made = fleet.covey("key", "create", name)
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1]


def test_a_gateway_waits_for_its_first_key_and_refuses_all_after_the_last(fleet: Apart) -> None:
    assert ask(fleet, "/healthz").status_code == 200
    unready = ask(fleet, "/readyz")
    assert unready.status_code == 503
    assert HINT in unready.json()["error"]["message"]
    for key in ("", "sk-covey-guessed", "sk-other"):
        refused = ask(fleet, "/v1/models", key)
        assert refused.status_code == 401
        assert HINT in refused.json()["error"]["message"]
    assert fleet.log("gateway").count(HINT) == 1

    text = key_of(fleet, "ann")
    wait_until(lambda: ask(fleet, "/v1/models", text).status_code == 200, "the key is taken", 30)
    assert ask(fleet, "/readyz").status_code == 200
    assert ask(fleet, "/v1/models").status_code == 401

    assert fleet.covey("delete", "accesskey/ann").returncode == 0
    wait_until(lambda: ask(fleet, "/v1/models", text).status_code == 401, "the key is refused", 30)
    assert HINT in ask(fleet, "/v1/models", text).json()["error"]["message"]
    assert ask(fleet, "/readyz").status_code == 503
    assert fleet.parts["gateway"].poll() is None
    assert fleet.log("gateway").count(HINT) == 2


def test_the_table_of_the_last_run_without_keys_serves_nobody_either(fleet: Apart) -> None:
    table = fleet.base / "gateway" / "gateway" / "table.json"
    wait_until(table.exists, "the table is kept", 30)
    fleet.end("gateway")
    fleet.end("controller")
    fleet.start("gateway", "gateway", "--controller", "https://127.0.0.1:1", "--listen", f"0.0.0.0:{fleet.port}")
    wait_until(lambda: fleet.log("gateway").count("listening on") == 2, "it listens again", 30)
    assert ask(fleet, "/v1/models", "sk-covey-guessed").status_code == 401
    assert ask(fleet, "/readyz").status_code == 503
