"""What HTTP clients are made of: whom they trust, the logins that the user keeps, how many connections they have."""

import logging
import netrc
import ssl

import httpx

from covey_agent.artifacts.index import IndexSettings

logger = logging.getLogger(__name__)


def make_client(trust: ssl.SSLContext, timeout: httpx.Timeout, max_connections: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=trust,
        follow_redirects=False,
        timeout=timeout,
        limits=httpx.Limits(max_connections=max_connections),
        headers={"User-Agent": "covey-agent", "Accept-Encoding": "identity"},
    )


def read_netrc(settings: IndexSettings) -> netrc.netrc | None:
    if settings.netrc is None:
        return None
    try:
        return netrc.netrc(settings.netrc)
    except (netrc.NetrcParseError, OSError) as error:
        logger.warning("%s is not used: it can't be read (%s)", settings.netrc, type(error).__name__)
        return None


def read_trust(settings: IndexSettings) -> ssl.SSLContext:
    if settings.authorities is not None:
        try:
            if settings.authorities.is_dir():
                return ssl.create_default_context(capath=str(settings.authorities))
            return ssl.create_default_context(cafile=str(settings.authorities))
        except (OSError, ssl.SSLError) as error:
            logger.warning("%s is not used as certificate bundle (%s)", settings.authorities, type(error).__name__)
    return httpx.create_ssl_context()
