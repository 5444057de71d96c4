"""Features by official SDK: which test asserts what the SDK reads, or why there is none. No cell is empty.

The names are of tests in `tests/integration`; `node` is a key that a script for JavaScript prints and its test checks.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2] / "integration"
SDKS = (
    "openai (Python)",
    "anthropic (Python)",
    "ollama (Python)",
    "openai (Node)",
    "anthropic (Node)",
    "ollama (Node)",
)

_ALL = "test_all_formats_tell_the_same_answer_with_and_without_a_stream"
_STOP = "test_a_stop_sequence_ends_the_answer_before_it_in_every_format"
_SCHEMA = "test_schemas_bind_the_answer_in_every_format"
_LONG = "test_too_long_a_prompt_has_both_numbers_in_every_format"
_THINK = "test_the_sdks_in_python_read_thoughts_apart_from_the_text"
_IMAGES = "test_the_sdks_in_python_send_images"
_BREAK = "test_the_sdks_in_python_raise_where_a_stream_breaks"
_NONE = "-: its API has no such call"
_SAME = "-: it asks as the SDK in Python does and is answered the same; what it makes of the answer isn't looked at"

MATRIX: dict[str, tuple[str, str, str, str, str, str]] = {
    "a whole answer": (_ALL, _ALL, _ALL, "node:chat", "-: `create` is what `stream` gathers", "node:thinking.ollama"),
    "a stream": (
        "test_openai_chat_stream_ends_with_usage_and_no_choices",
        "test_anthropic_stream_tells_the_input_first_and_truly",
        "test_ollama_streams_lines_by_default",
        "node:stream",
        "node:message",
        "node:ollama",
    ),
    "usage": (_ALL, _ALL, _ALL, "node:chat", "node:message", "node:ollama"),
    "finish reasons": (_ALL, _ALL, _ALL, "node:response", "node:message", "node:ollama"),
    "stop sequences": (_STOP, _STOP, _STOP, "node:stop", "node:stop", "node:stop"),
    "`system_fingerprint`": (_STOP, _NONE, _NONE, "node:stop", _NONE, _NONE),
    "Responses": ("test_responses_stream_is_numbered_and_whole", _NONE, _NONE, "node:responseStream", _NONE, _NONE),
    "text completions": (
        "test_openai_completions_count_every_choice_once",
        _NONE,
        _ALL,
        "node:completion",
        _NONE,
        "node:generated",
    ),
    "several choices, log probabilities": (
        "test_choices_logprobs_and_a_schema_pass",
        _NONE,
        _NONE,
        "node:choices",
        _NONE,
        _NONE,
    ),
    "an answer bound by a schema": (_SCHEMA, _SCHEMA, _SCHEMA, "node:schema", "node:schema", "node:schema"),
    "parallel tool calls": (
        "test_openai_reads_parallel_calls_with_and_without_a_stream",
        "test_anthropic_calls_tools_and_takes_their_results",
        "test_ollama_parses_the_arguments_of_calls",
        "node:tools.chatStream",
        "node:tools.messages",
        "node:tools.ollama",
    ),
    "results of tools": (
        "test_responses_call_tools_and_take_their_results",
        "test_anthropic_calls_tools_and_takes_their_results",
        "-: Ollama's results have no ids; test_ollamas_calls_and_results_find_each_other_without_ids is a unit's",
        "node:results",
        "node:results",
        "node:results",
    ),
    "reasoning apart": (_THINK, _THINK, _THINK, "node:thinking.chat", "node:thinking.messages", "node:thinking.ollama"),
    "reasoning in a Responses stream": (_THINK, _NONE, _NONE, "node:thinking.responseStream", _NONE, _NONE),
    "cached tokens": (
        "-: OpenAI's usage passes as the engine wrote it; test_gateway_chat_answer has the field",
        "test_anthropic_reads_the_prompt_cache",
        "-: Ollama's answers have no such field",
        _SAME,
        "node:message",
        "-: Ollama's answers have no such field",
    ),
    "counting tokens": (
        _NONE,
        "test_anthropic_stream_tells_the_input_first_and_truly",
        _NONE,
        _NONE,
        "node:counted",
        _NONE,
    ),
    "embeddings": (
        "test_embeddings_are_equal_as_numbers_packed_and_in_ollamas_shape",
        _NONE,
        "test_embeddings_are_equal_as_numbers_packed_and_in_ollamas_shape",
        "node:embeddings",
        _NONE,
        "node:embed",
    ),
    "lists of models": (
        "test_models_are_listed_for_both_sdks",
        "test_models_are_listed_for_both_sdks",
        "test_ollama_lists_what_is_declared",
        "node:models",
        "node:anthropicModels",
        "node:tags",
    ),
    "an error before the answer": (_LONG, _LONG, _LONG, "node:errors", "node:errors", "node:errors"),
    "an error in the stream": (_BREAK, _BREAK, _BREAK, "node:broken", "node:broken", "node:broken"),
    "request ids": (
        "test_request_ids_come_back",
        "test_request_ids_come_back",
        "-: this SDK shows no heads",
        "node:chat",
        _SAME,
        "-: this SDK shows no heads",
    ),
    "leaving, cancelling": (
        "-: asked in plain HTTP, before the real engine: test_a_client_that_leaves_frees_its_slot_within_a_second",
        _SAME,
        _SAME,
        "node:cancelled",
        _SAME,
        _SAME,
    ),
    "images": (
        _IMAGES,
        _IMAGES,
        _IMAGES,
        "node:images",
        "node:images",
        "node:images",
    ),
}


@pytest.mark.parametrize("feature", MATRIX)
def test_every_cell_names_a_test_that_is_there_or_a_reason(feature: str) -> None:
    python = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("test_gateway*.py"))
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("node_*.mjs"))
    for sdk, cell in zip(SDKS, MATRIX[feature], strict=True):
        if cell.startswith("node:"):
            name = cell.removeprefix("node:")
            assert f"found.{name} " in scripts or f"found.{name.partition('.')[0]}[" in scripts, (sdk, cell)
            key = name.partition(".")[0]
            assert f'found["{key}"]' in python or f"{key}[" in python, (sdk, cell)
        elif cell.startswith("-: "):
            assert len(cell) > 20, (sdk, cell)
        else:
            assert f"def {cell}(" in python, (sdk, cell)
