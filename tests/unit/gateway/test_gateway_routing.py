"""Names, keys, choice: what the routing table means."""

import hashlib
from dataclasses import replace

import pytest
from covey_api.engines import Task
from covey_api.messages import ClientKey, Endpoint, Endpoints, ModelState, Progress, ServedModel
from covey_api.reasons import ErrorCode
from covey_gateway.limits import MAX_OUTSTANDING_PER_SLOT
from covey_gateway.routing.access import AccessPolicy, admit, choose_policy, is_local_authority, is_local_origin
from covey_gateway.routing.choose import NoneFree, choose_target
from covey_gateway.routing.load import Aside, Load, measure_outstanding, set_aside
from covey_gateway.routing.refusals import refuse_none_free, refuse_task, refuse_unknown, refuse_unready
from covey_gateway.routing.table import Caller, Target, parse_endpoints, parse_hash, parse_key
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.head import RequestHead
from hypothesis import given
from hypothesis import strategies as st

SECRET = "sk-covey-abc"
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()


def served(name: str, namespace: str = "default", **fields: object) -> ServedModel:
    return ServedModel.model_validate(
        {"namespace": namespace, "name": name, "state": ModelState.READY, "tasks": ("Chat",)} | fields
    )


def target(id_: str = "a", *, slots: int = 1, weight: int = 1, confirmed: bool = True, doubted: bool = False) -> Target:
    return Target(
        id=id_,
        instance_id=id_,
        namespace="default",
        model="m",
        host="127.0.0.1",
        port=1,
        key="",
        slots=slots,
        weight=weight,
        context_tokens=None,
        confirmed=confirmed,
        doubted=doubted,
    )


# Names


TABLE = parse_endpoints(
    Endpoints(
        term=1,
        serial=1,
        models=(
            served("b", aliases=("gpt-4o", "c", "org/model:tag")),
            served("c"),
            served("a", "other"),
        ),
        keys=(ClientKey(namespace="default", name="k", hash=HASH),),
    ),
    "this",
)


@pytest.mark.parametrize(
    ("caller", "asked", "found"),
    [
        (Caller(), "b", "default/b"),
        (Caller(), "gpt-4o", "default/b"),
        (Caller(), "org/model:tag", "default/b"),
        (Caller(), "c", "default/b"),
        (Caller(), "default/c", "default/c"),
        (Caller(), "other/a", "other/a"),
        (Caller(), "a", None),
        (Caller(), "default/gpt-4o", None),
        (Caller("other", can_cross=False), "a", "other/a"),
        (Caller("other", can_cross=False), "other/a", "other/a"),
        (Caller("other", can_cross=False), "default/b", None),
        (Caller("other", can_cross=False), "gpt-4o", None),
        (Caller(), "", None),
        (Caller(), "/", None),
    ],
)
def test_a_name_is_an_alias_then_a_model_then_namespace_and_name(caller: Caller, asked: str, found: str | None) -> None:
    model = TABLE.resolve(caller, asked)
    assert (f"{model.namespace}/{model.name}" if model else None) == found


def test_a_list_of_models_holds_what_can_be_asked_for() -> None:
    assert list(TABLE.names_for(Caller())) == ["b", "c", "other/a"]
    assert list(TABLE.names_for(Caller("other", can_cross=False))) == ["a"]
    for caller in (Caller(), Caller("other", can_cross=False)):
        for name, model in TABLE.names_for(caller).items():
            assert TABLE.resolve(caller, name) == model or name == "c"  # an alias of `b` hides it


def test_an_unknown_name_is_answered_with_those_that_are() -> None:
    error = refuse_unknown("x", [f"m{n}" for n in range(12)])
    assert (error.status, error.code) == (404, ErrorCode.MODEL_NOT_FOUND)
    assert "'m0'" in error.message
    assert "2 more" in error.message
    assert "no model is declared" in refuse_unknown("x", []).message


def test_an_endpoint_of_a_restarted_engine_is_another_target() -> None:
    one = Endpoint(
        instance_id="i",
        instance="default/m-0",
        namespace="default",
        model="m",
        node="n",
        host="127.0.0.1",
        port=1,
        key="k",
        engine="LlamaServer",
        slots=2,
        context_tokens=9,
    )
    table = parse_endpoints(Endpoints(term=1, serial=1, endpoints=(one, one.model_copy(update={"port": 2}))), "")
    assert [t.id for t in table.targets["default", "m"]] == ["i@127.0.0.1:1", "i@127.0.0.1:2"]


# States


def test_a_loading_model_says_how_far_it_is() -> None:
    model = served(
        "m",
        state=ModelState.LOADING,
        reason="ArtifactsPending",
        message="fetching",
        retry_after_seconds=9,
        progress=Progress(step="model", done_bytes=1, total_bytes=2, bytes_per_second=3),
    )
    error = refuse_unready(model)
    assert (error.status, error.code, error.retry_after_seconds) == (503, ErrorCode.MODEL_LOADING, 9)
    assert error.loading == {
        "state": "Loading",
        "reason": "ArtifactsPending",
        "message": "fetching",
        "step": "model",
        "doneBytes": 1,
        "totalBytes": 2,
        "bytesPerSecond": 3,
    }


def test_a_model_that_cannot_be_had_says_why_and_promises_nothing() -> None:
    error = refuse_unready(served("m", state=ModelState.UNAVAILABLE, reason="NotPlaced", message="no room"))
    assert (error.status, error.code, error.retry_after_seconds) == (503, ErrorCode.MODEL_UNAVAILABLE, None)
    assert "NotPlaced: no room" in error.message
    assert "no Placement" in refuse_unready(served("m", state=ModelState.NOT_PLACED)).message


def test_a_ready_model_without_endpoint_is_about_to_have_one() -> None:
    assert refuse_unready(served("m")).code is ErrorCode.MODEL_LOADING


def test_a_task_that_a_model_lacks_is_refused() -> None:
    assert refuse_task(served("m"), Task.CHAT) is None
    assert refuse_task(served("m", tasks=()), Task.CHAT) is None
    error = refuse_task(served("m", tasks=("Embed",)), Task.CHAT)
    assert error is not None
    assert error.code is ErrorCode.TASK_NOT_SUPPORTED


# Choice


def chosen(*targets: Target, turn: int = 0, now: float = 0.0, excluded: str | None = None, **loads: Load) -> str:
    found = choose_target(targets, loads, now, turn, excluded)
    assert isinstance(found, Target), found
    return found.id


def test_the_least_outstanding_endpoint_is_chosen() -> None:
    assert chosen(target("a"), target("b"), a=Load(in_flight=2), b=Load(in_flight=1)) == "b"


def test_slots_and_weight_count() -> None:
    assert chosen(target("a", slots=4), target("b"), a=Load(in_flight=2), b=Load(in_flight=0)) == "a"
    assert chosen(target("a"), target("b", weight=3), a=Load(in_flight=0), b=Load(in_flight=1)) == "b"


def test_ties_go_in_turns() -> None:
    assert [chosen(target("a"), target("b"), target("c"), turn=turn) for turn in range(4)] == ["a", "b", "c", "a"]


def test_confirmed_endpoints_come_before_unconfirmed_ones() -> None:
    doubtful = target("b", confirmed=False)
    assert chosen(target("a"), doubtful, a=Load(in_flight=9)) == "a"
    assert chosen(target("a"), doubtful, a=Load(aside=Aside(5, 1))) == "b"
    assert chosen(target("a"), doubtful, a=Load(in_flight=MAX_OUTSTANDING_PER_SLOT)) == "b"


def test_a_doubted_endpoint_is_used_when_no_other_is_free() -> None:
    silent = target("a", doubted=True)
    assert chosen(silent, target("b"), b=Load(in_flight=3)) == "b"
    assert chosen(silent, target("b", confirmed=False)) == "b"
    assert chosen(silent, target("b"), b=Load(in_flight=MAX_OUTSTANDING_PER_SLOT)) == "a"
    assert chosen(silent, target("b"), b=Load(aside=Aside(5, 1))) == "a"
    assert chosen(silent) == "a"
    assert [chosen(silent, target("b"), target("c"), turn=turn) for turn in range(4)] == ["b", "c", "b", "c"]


def test_one_set_aside_is_tried_by_one_request_when_its_time_is_over() -> None:
    aside = Load(aside=Aside(until=5, seconds=1))
    assert choose_target([target("a")], {"a": aside}, 4.0, 0) == NoneFree(is_full=False, retry_after_seconds=1)
    assert chosen(target("a"), now=5.0, a=aside) == "a"
    probed = Load(in_flight=1, aside=Aside(until=5, seconds=1, is_probed=True))
    assert choose_target([target("a")], {"a": probed}, 9.0, 0) == NoneFree(is_full=False, retry_after_seconds=1)


def test_no_endpoint_free_says_why_and_for_how_long() -> None:
    full = Load(in_flight=MAX_OUTSTANDING_PER_SLOT)
    assert choose_target([target("a")], {"a": full}, 0.0, 0) == NoneFree(is_full=True, retry_after_seconds=1)
    aside = Load(aside=Aside(until=10.5, seconds=30))
    assert choose_target([target("a")], {"a": aside}, 0.0, 0) == NoneFree(is_full=False, retry_after_seconds=11)
    assert choose_target([target("a")], {}, 0.0, 0, excluded="a") == NoneFree(is_full=False, retry_after_seconds=1)
    assert refuse_none_free(served("m"), NoneFree(True, 1)).code is ErrorCode.OVERLOADED
    assert refuse_none_free(served("m"), NoneFree(False, 4)).retry_after_seconds == 4


def test_time_aside_doubles_to_its_bound_and_failures_together_count_once() -> None:
    aside = set_aside(None, 0.0)
    assert aside == Aside(1.0, 1.0)
    assert set_aside(aside, 0.5) == aside
    seconds: list[float] = []
    for _ in range(7):
        aside = set_aside(replace(aside, is_probed=True), aside.until)
        seconds.append(aside.seconds)
    assert seconds == [2, 4, 8, 16, 30, 30, 30]
    assert not aside.is_probed


_load = st.builds(
    Load,
    in_flight=st.integers(0, 200),
    aside=st.none() | st.builds(Aside, until=st.floats(0, 60), seconds=st.floats(1, 30), is_probed=st.booleans()),
)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans(), _load), max_size=5),
    st.floats(0, 60),
    st.integers(0, 10),
)
def test_a_choice_is_deterministic_and_never_one_that_may_not_be_used(
    spec: list[tuple[int, int, bool, Load]], now: float, turn: int
) -> None:
    targets = [target(str(n), slots=s, weight=w, confirmed=c) for n, (s, w, c, _) in enumerate(spec)]
    loads = {str(n): load for n, (*_, load) in enumerate(spec)}
    found = choose_target(targets, loads, now, turn)
    assert found == choose_target(targets, loads, now, turn)
    usable = [
        t
        for t in targets
        if not ((aside := loads[t.id].aside) and aside.blocks(now))
        and loads[t.id].in_flight < t.slots * MAX_OUTSTANDING_PER_SLOT
    ]
    if isinstance(found, NoneFree):
        assert not usable
        assert found.retry_after_seconds >= 1
    else:
        assert found in usable
        assert measure_outstanding(found, loads) == min(
            measure_outstanding(t, loads) for t in usable if t.confirmed == found.confirmed
        )
        assert found.confirmed or not any(t.confirmed for t in usable)


# Access


def head(credential: str | None = None, **fields: object) -> RequestHead:
    given_ = {"path": b"/v1/models", "host": b"localhost:52415", "origin": None} | fields
    return RequestHead(
        method=b"GET",
        credential=credential,
        request_id=None,
        content_length=0,
        expects_continue=False,
        **given_,  # pyright: ignore[reportArgumentType]  (fields of three types)
    )


LOOPBACK = choose_policy("127.0.0.1", insecure=False)
OPEN = choose_policy("0.0.0.0", insecure=False)  # noqa: S104  (nothing listens here)


def admitted(policy: AccessPolicy, request: RequestHead, expiry: str | None = None, *, keys: bool = True) -> object:
    key = parse_key(ClientKey(namespace="team", name="k", hash=HASH, expiry=expiry))
    return admit(policy, request, {key.digest: key} if keys else {}, now=1_800_000_000.0)


def status_of(found: object) -> int:
    assert isinstance(found, ApiError), found
    return found.status


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:1", b"127.0.0.1:52415", b"127.9.9.9", b"[::1]:8", b"[::1]"])
def test_a_local_host_is_admitted_on_loopback(host: bytes) -> None:
    assert admitted(LOOPBACK, head(host=host)) == Caller()


@pytest.mark.parametrize(
    "host", [b"evil.example", b"localhost.evil.example", b"127.0.0.1.nip.io", b"10.0.0.1", b"", b"localhost:x", b"::1"]
)
def test_another_host_is_refused_on_loopback(host: bytes) -> None:
    assert status_of(admitted(LOOPBACK, head(host=host))) == 403


@pytest.mark.parametrize(
    ("origin", "is_local"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:5", True),
        ("null", False),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost@evil.example", False),
        ("file://", False),
        ("", False),
    ],
)
def test_a_web_page_is_admitted_on_loopback_only_if_it_is_local(origin: str, is_local: bool) -> None:
    assert is_local_origin(origin) is is_local
    found = admitted(LOOPBACK, head(origin=origin.encode()))
    assert (found == Caller()) is is_local


def test_no_key_is_needed_on_loopback_and_a_strange_one_is_ignored() -> None:
    for credential in (None, "sk-anything", "ollama"):
        assert admitted(LOOPBACK, head(credential)) == Caller()


def test_a_deleted_key_of_ours_is_refused_also_where_none_is_needed() -> None:
    found = admitted(LOOPBACK, head("sk-covey-unknown"), keys=False)
    assert isinstance(found, ApiError)
    assert found.code is ErrorCode.INVALID_API_KEY


def test_a_key_of_ours_is_checked_on_loopback_too() -> None:
    assert admitted(LOOPBACK, head(SECRET)) == Caller("team", can_cross=False, key="team/k")
    assert status_of(admitted(LOOPBACK, head("sk-covey-wrong"))) == 401


def test_elsewhere_a_key_is_needed_and_host_and_origin_are_free() -> None:
    found = admitted(OPEN, head(SECRET, host=b"llm.example", origin=b"https://chat.example"))
    assert found == Caller("team", can_cross=False, key="team/k")
    for credential in (None, "", "x", "sk-covey-wrong", SECRET + "x"):
        assert status_of(admitted(OPEN, head(credential, host=b"llm.example"))) == 401
    assert status_of(admitted(OPEN, head(SECRET), keys=False)) == 401


def test_an_expired_key_is_refused() -> None:
    assert admitted(OPEN, head(SECRET), "2027-01-15T08:00:01Z") == Caller("team", can_cross=False, key="team/k")
    assert status_of(admitted(OPEN, head(SECRET), "2027-01-15T08:00:00Z")) == 401
    assert status_of(admitted(OPEN, head(SECRET), "soon")) == 401


def test_insecure_lifts_both_rules() -> None:
    insecure = choose_policy("0.0.0.0", insecure=True)  # noqa: S104
    assert admitted(insecure, head(host=b"llm.example", origin=b"https://chat.example")) == Caller()


def test_probes_need_no_key_but_a_local_host() -> None:
    for path in (b"/healthz", b"/readyz"):
        assert admitted(OPEN, head(path=path, host=b"10.0.0.1")) == Caller()
        assert status_of(admitted(LOOPBACK, head(path=path, host=b"evil.example"))) == 403


def test_a_hash_that_cannot_be_read_matches_nothing() -> None:
    assert parse_hash("md5:00") == b""
    assert parse_hash("sha256:zz") == b""
    assert parse_hash(HASH) == hashlib.sha256(SECRET.encode()).digest()


@given(st.text(max_size=40))
def test_any_host_gives_an_answer(text: str) -> None:
    assert is_local_authority(text) in (True, False)
    assert is_local_origin(text) in (True, False)
