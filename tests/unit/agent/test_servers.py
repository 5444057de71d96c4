"""The pure parts of our engine servers: stop texts, sampling, what is refused, the room of kept prompts."""

from pathlib import Path
from typing import Any

import pytest
from covey_agent.engines.servers.llama_cpp_server import parse_sampling
from covey_agent.engines.servers.mlx_draft import count_different
from covey_agent.engines.servers.mlx_server import Budget, Passes
from covey_agent.engines.servers.options import parse_settings
from covey_agent.engines.servers.sampling import choose_mlx_fields, read_stops, refuse_variables, settle_mlx_choices
from covey_agent.engines.servers.stops import Stops
from covey_agent.engines.servers.web import LoadFailed, Refused, Unfit, choose_max_tokens, report_failure, text_messages
from hypothesis import given
from hypothesis import strategies as st

LETTERS = st.text("ab", max_size=30)


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_what_is_shown_ends_before_the_first_stop_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reader = Stops(tuple(stops))
    shown = "".join(reader.take(piece) for piece in pieces) + reader.rest()
    # Whoever reads piece by piece stops at the stop that is whole first, and shows what is before it.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert reader.is_met == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"temperature": "hot"}, '`temperature` must be a number from 0 to 10; got "hot"'),
        ({"top_p": 1.5}, "`top_p` must be a number from 0 to 1; got 1.5"),
        ({"top_k": True}, "`top_k` must be a whole number"),
    ],
)
def test_sampling_out_of_bounds_is_refused_by_field(body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as raised:
        parse_sampling(body)
    assert words in str(raised.value)


def test_sampling_has_defaults_and_takes_what_is_given() -> None:
    assert parse_sampling({})["temp"] == 0.8
    assert parse_sampling({"temperature": 0, "top_k": 3}) | {"temp": 0.0, "top_k": 3} == parse_sampling(
        {"temperature": 0, "top_k": 3}
    )


MLX_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"xtc_probability": "often"}, "`xtc_probability` must be a number from 0 to 1"),
    ({"top_k": 1.5}, "`top_k` must be a whole number"),
    ({"logit_bias": {"99999999999999999999": 1}}, 'names token "99999999999999999999"; this model has 0 to 99'),
    ({"logit_bias": {"100": 1}}, 'names token "100"'),
    ({"logit_bias": {"-1": 1}}, 'names token "-1"'),
    ({"logit_bias": {"1": float("inf")}}, "must be numbers from -100 to 100"),
    ({"logit_bias": [1]}, "`logit_bias` must be an object"),
    ({"stop": ["\ud800"]}, "that the model's tokenizer knows"),
    ({"stop": [["a"]]}, "`stop` must be a text"),
    ({"seed": "x"}, "`seed` must be a whole number"),
    ({"stream_options": 1}, "`stream_options` must be an object"),
    ({"temperature": 10**400}, "`temperature` must be a number"),
]


@pytest.mark.parametrize(("fields", "words"), MLX_REFUSED)
def test_what_would_end_mlx_for_everybody_is_refused_by_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as raised:
        choose_mlx_fields(fields, 100, lambda text: list(text.encode()))
    assert words in str(raised.value)


def test_mlx_is_handed_what_it_can_do_and_nothing_else() -> None:
    fields = {"top_k": 200_000, "xtc_probability": 0.5, "xtc_threshold": 0.9, "seed": 2**70 + 3, "stop": "x"}
    others: dict[str, Any] = {
        "draft_model": "m",
        "role_mapping": {},
        "unknown": 1,
        "temperature": None,
        "tools": [1],
        "stream": True,
    }
    assert choose_mlx_fields(fields | others, 100, lambda text: list(text.encode())) == {
        **{"top_k": 0, "xtc_probability": 0.0, "xtc_threshold": 0.0, "seed": 3, "stop": ["x"]},
        **{"tools": [1], "stream": True},
    }
    assert choose_mlx_fields({"top_k": 99, "logit_bias": {"7": 1}}, 100, lambda _: [1]) == {
        "top_k": 99,
        "logit_bias": {"7": 1.0},
    }


def test_what_mlx_would_drop_without_a_word_is_refused_or_done() -> None:
    for fields, words in (
        ({"n": 2}, "`n` must be 1"),
        ({"tool_choice": "required"}, "`tool_choice` must be 'auto' or 'none'"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "`tool_choice` must be"),
    ):
        with pytest.raises(Refused, match=words):
            settle_mlx_choices({"tools": [1]} | fields)
    for fields, left in (({"tool_choice": "none"}, {}), ({"tool_choice": "auto", "n": 1}, {"tools": [1], "n": 1})):
        body: dict[str, Any] = {"tools": [1]} | fields
        settle_mlx_choices(body)
        assert body == left


def test_arguments_of_the_templates_function_are_no_variables_of_a_template() -> None:
    refuse_variables({"enable_thinking": False}, frozenset(("padding", "max_length")))
    with pytest.raises(Refused, match="must not hold `max_length`"):
        refuse_variables({"padding": "max_length", "max_length": 2_000_000_000}, frozenset(("padding", "max_length")))


@pytest.mark.parametrize("stop", [3, [""], ["a", 1], ["x"] * 17])
def test_stops_that_are_no_texts_are_refused(stop: object) -> None:
    with pytest.raises(Refused, match="`stop` must be a text"):
        read_stops({"stop": stop})


def test_the_answer_is_bounded_by_what_is_left_of_the_window() -> None:
    assert choose_max_tokens({}, 100, 512) == 412
    for wished in (411, 412):
        assert choose_max_tokens({"max_tokens": wished}, 100, 512) == wished
    with pytest.raises(Refused) as both:
        choose_max_tokens({"max_tokens": 413}, 100, 512)
    assert both.value.content["error"] == {
        "code": 400,
        "type": "exceed_context_size_error",
        "message": "100 tokens of the request and 413 of `max_tokens` exceed the context size (512)",
        "n_prompt_tokens": 100,
        "n_ctx": 512,
        "n_max_tokens": 413,
    }
    assert choose_max_tokens({"max_completion_tokens": 5, "max_tokens": 9}, 100, 512) == 5
    with pytest.raises(Refused) as raised:
        choose_max_tokens({}, 512, 512)
    assert (raised.value.content["error"]["n_prompt_tokens"], raised.value.content["error"]["n_ctx"]) == (512, 512)


@pytest.mark.parametrize(
    "messages",
    [None, [], "x", [1], [{"content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}]],
)
def test_messages_that_an_engine_would_stumble_on_are_refused(messages: object) -> None:
    with pytest.raises(Refused, match="`messages"):
        text_messages({"messages": messages})


def test_parts_of_text_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_messages({"messages": [{"role": "user", "content": parts}]})[0]["content"] == "ab"


def test_a_developers_words_are_the_systems_for_a_template() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert [one["role"] for one in text_messages({"messages": messages})] == ["system", "user"]


def test_kept_prompts_yield_to_what_running_requests_were_promised() -> None:
    settings = parse_settings(["Mlx", "--window", "100", "--slots", "2", "--cache-bytes", "2000"])
    budget = Budget(settings)
    assert budget.spare_bytes == 2000
    budget.promise(50)
    assert budget.spare_bytes == 1500
    budget.promise(500)
    assert budget.spare_bytes == 0
    budget.promise(-550)
    assert budget.spare_bytes == 2000


def test_what_a_model_computes_is_counted_and_is_what_it_was() -> None:
    class Model:
        def __call__(self, number: int, *, more: int) -> int:
            return number + more

    model, other, passes = Model(), Model(), Passes()
    passes.watch(model)
    assert [model(1, more=2), model(3, more=4), other(1, more=1)] == [3, 7, 2]
    assert passes.count == 2
    assert isinstance(model, Model)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "covey-engine: OutOfMemory: MemoryError:"),
        (LoadFailed("no such\nmodel"), "covey-engine: ArtifactCorrupt: LoadFailed: no such model"),
        (Unfit("not here"), "covey-engine: NoUsableEngine: Unfit: not here"),
        (ModuleNotFoundError("mlx"), "covey-engine: NoUsableEngine: ModuleNotFoundError: mlx"),
        (OSError(98, "Address already in use"), "covey-engine: Exited: OSError: [Errno 98] Address already in use"),
    ],
)
def test_what_ended_a_server_is_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(error) == 1
    assert capsys.readouterr().err.strip() == line.strip()


def test_settings_come_from_the_command_line_alone() -> None:
    settings = parse_settings(
        ["LlamaCpp", "--model", "/m", "--name", "a", "--port", "1", "--key-file", "/k", "--mlock"]
    )
    assert (settings.model, settings.name, settings.mlock, settings.packages) == (Path("/m"), "a", True, None)
    assert settings.draft is None


def test_a_few_added_tokens_are_no_other_vocabulary() -> None:
    model = {str(number): number for number in range(1000)}
    assert count_different(model, dict(list(model.items())[:900])) == 0
    assert count_different(model, {token: number + 1 for token, number in model.items()}) == 1000
