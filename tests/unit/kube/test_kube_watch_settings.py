"""What is asked of kopf: to watch, and nothing else."""

from covey_controller.stores.kube.credentials import Credentials
from covey_controller.stores.kube.watch import connection_info, watch_settings


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


def test_login_reaches_kopf_whole() -> None:
    info = connection_info(Credentials("https://a:1", "team", "PEM", token="secret"))
    assert (info.server, info.token, info.ca_data) == ("https://a:1", "secret", "UEVN")
    assert info.certificate_data is None
    assert info.as_http_headers() == {"Authorization": "Bearer secret"}
