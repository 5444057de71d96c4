"""What watching a certificate says when the controller is away."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole, JoinAnswer
from covey_controller.authority import parse_signing_request
from covey_fleet_client.client import FleetClient
from covey_fleet_client.identity import Identity, load_identity
from kit.ports import free_port
from kit.vaults import authority_in


def joined_in(folder: Path) -> Identity:
    now = time.time()
    authority = authority_in(folder / "controller", now)
    fresh = load_identity(folder / "agent")
    key = parse_signing_request(fresh.render_signing_request())
    certificate = authority.issue_client(key, CertificateRole.AGENT, "a", now)
    answer = JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=now)
    return fresh.accept(answer, CertificateRole.AGENT, "a", now)


def test_a_controller_that_is_away_is_no_warning_about_the_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def watch() -> None:
        said = asyncio.Event()
        caplog.handler.addFilter(lambda _: said.set() or True)
        async with FleetClient(joined_in(tmp_path), f"https://127.0.0.1:{free_port()}") as client:
            watching = asyncio.ensure_future(client.watch_certificate())
            async with asyncio.timeout(30):
                await said.wait()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    with caplog.at_level(logging.DEBUG, logger="covey_fleet_client.client"):
        asyncio.run(watch())
    told = [record for record in caplog.records if record.name == "covey_fleet_client.client"]
    assert [record.levelname for record in told] == ["DEBUG"]


def test_a_skew_is_told_once_and_again_when_it_is_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = FleetClient(joined_in(tmp_path), f"https://127.0.0.1:{free_port()}")
    now = time.time()
    for theirs in (now + 5, now - 7200, now - 7190, now - 7210, now + 3600, now, now - 7200):
        client._note_clock(theirs, now)  # pyright: ignore[reportPrivateUsage]
    told = [record.getMessage().split(" s from")[0] for record in caplog.records]
    assert told == [
        "the controller's clock is -7200",
        "the controller's clock is +3600",
        "the controller's clock is -7200",
    ]
