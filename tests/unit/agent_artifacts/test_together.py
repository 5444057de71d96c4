"""Several at a time: one failure stands for all, whatever it is."""

import asyncio
import errno

import pytest
from covey_agent.artifacts.together import do_together
from covey_agent.artifacts.web import unavailable
from covey_agent.ports import AgentError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ((OSError(errno.EIO, "a disk"),), OSError),
        ((OSError(errno.EIO, "a disk"), unavailable("words")), AgentError),
        ((unavailable("words"), unavailable("others")), AgentError),
        ((ValueError("a bug"), OSError(errno.EIO, "a disk")), OSError),
        ((ValueError("a bug"),), ValueError),
    ],
)
async def test_what_fails_leaves_as_itself_and_in_no_group(
    failures: tuple[Exception, ...], kind: type[Exception]
) -> None:
    begun = asyncio.Barrier(len(failures))

    async def fail(failure: Exception) -> None:
        await begun.wait()
        raise failure

    with pytest.raises(kind) as raised:
        await do_together(fail, failures, len(failures))
    assert raised.value in failures
