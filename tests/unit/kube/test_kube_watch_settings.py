"""What is asked of kopf: to watch, and nothing else."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from covey_controller.stores.kube.credentials import KubeconfigLogin
from covey_controller.stores.kube.sockets import Sockets
from covey_controller.stores.kube.watch import WatchSession, watch_settings

KUBECONFIG = {
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://a:1"}}],
    "users": [{"name": "c", "user": {"tokenFile": "token"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
}


def test_kopf_writes_nothing_scans_nothing_and_never_kills_the_process() -> None:
    settings = watch_settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.process.ultimate_exiting_timeout is None


def test_every_watch_ends_at_the_server_and_a_silent_one_sooner() -> None:
    watching = watch_settings().watching
    assert watching.server_timeout is not None
    assert watching.client_timeout is not None
    assert 60 < watching.inactivity_timeout < watching.server_timeout < watching.client_timeout
    assert watch_settings().networking.request_timeout == 60


def test_no_limit_of_workers_can_lock_kopf_up_at_its_start() -> None:
    assert watch_settings().queueing.worker_limit is None


def test_kopf_gives_up_within_seconds_what_its_caller_begins_anew() -> None:
    backoffs = watch_settings().networking.error_backoffs
    assert isinstance(backoffs, tuple)
    assert sum(backoffs) < 10


def test_login_reaches_kopf_whole_and_is_given_again_only_when_it_changed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    (tmp_path / "config").write_text(json.dumps(KUBECONFIG))
    ended = tmp_path / "ended.config"

    async def scenario() -> None:
        session = WatchSession(KubeconfigLogin(tmp_path / "config"))
        first = await session.log_in()
        assert first is not None
        assert first.server == "https://a:1"
        assert first.aiohttp_session.headers["Authorization"] == "Bearer secret"
        assert await session.log_in() is None, "it was refused"
        token.write_text("newer")
        second = await session.log_in()
        assert second is not None
        assert second.aiohttp_session.headers["Authorization"] == "Bearer newer"
        assert first.aiohttp_session.closed
        await session.close()
        assert second.aiohttp_session.closed
        assert await WatchSession(KubeconfigLogin(ended)).log_in() is None, "an exception would lock kopf up"

    asyncio.run(scenario())


def test_session_that_is_being_ended_makes_no_more_sockets() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 9))

    async def scenario() -> None:
        sockets = Sockets()
        made = sockets.open(address)
        await sockets.close()
        assert made.fileno() == -1
        with pytest.raises(OSError, match="is being ended"):
            sockets.open(address)

    asyncio.run(scenario())
