"""One model over several nodes, with the real engines: a driver, donors, and the keepers' tunnel between them."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from covey_api.instance import MemberPhase
from covey_api.reasons import FailureCause
from engine_rig import KEY as SINGLE_KEY
from engine_rig import started_engine
from group_rig import KEY, GroupRig, running_group
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TOKENS = 24
BODY = {"prompt": "The capital of France is", "n_predict": TOKENS, "temperature": 0, "return_tokens": True}


def ask(port: int, key: str) -> list[int]:
    """Token ids of a greedy answer."""
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"http://127.0.0.1:{port}/completion", json=BODY, headers=headers, timeout=60, trust_env=False)
    tokens: list[int] = answer.json()["tokens"]
    return tokens


async def stream_until_cut(rig: GroupRig, port: int) -> str:
    """A long answer in whose middle the donor on node b is killed: how the stream ends."""
    body = {**BODY, "n_predict": 400, "stream": True, "ignore_eos": True}
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        try:
            async with client.stream(
                "POST", f"http://127.0.0.1:{port}/completion", json=body, headers=headers
            ) as answer:
                count = 0
                async for _ in answer.aiter_lines():
                    count += 1
                    if count == 4:
                        rig.engine("b").send_signal(signal.SIGKILL)
        except httpx.HTTPError as error:
            return type(error).__name__
    return "whole"


def test_a_group_answers_as_one_node_does_ends_as_one_and_is_formed_again(tmp_path: Path) -> None:
    (tmp_path / "single").mkdir()
    with started_engine(tmp_path / "single", "-c", "512", "--no-repack", slots=1) as single:
        expected = ask(single.port, SINGLE_KEY)
    assert len(expected) == TOKENS

    provide_real_parts()

    async def story() -> None:
        async with running_group(tmp_path, "a", "b", "c") as rig:
            instance = rig.instance("b", "c")
            driver = await rig.form(instance)
            assert await asyncio.to_thread(ask, driver.port, KEY) == expected

            # A donor's end: clients see it at once, and every member tells whose it was.
            assert await stream_until_cut(rig, driver.port) == "RemoteProtocolError"
            for node in ("a", "b", "c"):
                report = await rig.wait_phase(node, MemberPhase.FAILED)
                assert report.restarts == 0
                if node == "b":
                    assert report.cause is FailureCause.KILLED
                else:
                    assert report.cause is FailureCause.NEIGHBOUR_ENDED
                    assert report.message.startswith("member '1' on node 'b' lost its engine: it ended by SIGKILL")

            again = rig.instance("b", "c", attempt=2)
            driver = await rig.form(again)
            assert await asyncio.to_thread(ask, driver.port, KEY) == expected

            # The agents are away, and the controller with them: keepers end the rest by themselves.
            for node in ("a", "b", "c"):
                rig.agents[node].kill()
                rig.agents[node].wait()
            rig.engine("a").send_signal(signal.SIGKILL)
            for node in ("a", "b", "c"):
                exit_file = rig.state(node) / "agent" / "members" / instance.spec.instance_id / "exit.json"
                await rig.wait(exit_file.exists, f"the member on node {node} has ended")
                await rig.start(node)
            for node in ("b", "c"):
                report = await rig.wait_phase(node, MemberPhase.FAILED, 2)
                assert report.cause is FailureCause.NEIGHBOUR_ENDED
                assert report.message.startswith("member '0' on node 'a' lost its engine: it ended by SIGKILL")
            assert (await rig.wait_phase("a", MemberPhase.FAILED, 2)).cause is FailureCause.KILLED
            await rig.stop(again)

    asyncio.run(story())
