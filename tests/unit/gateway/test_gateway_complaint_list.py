"""What users of other routers and engines complained about, and which test fails when it holds here."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]

COMPLAINTS: dict[str, tuple[str, ...]] = {
    "vllm-project/production-stack#749: one hung backend blocks all": ("test_a_hung_endpoint_delays_no_one_else",),
    "vllm-project/production-stack#448: crashed above a thousand requests": (
        "test_twelve_hundred_streams_at_once_are_all_served",
    ),
    "vllm-project/production-stack#634: who leaves without a stream isn't noticed": (
        "test_a_client_that_leaves_frees_its_slot_within_a_second",
    ),
    "llm-d/llm-d-benchmark#1675: a kept connection is closed by the other end first": (
        "test_connections_are_reused_and_closed_before_the_engine_would",
        "test_a_reused_connection_that_the_engine_closed_is_replaced_unnoticed",
    ),
    "BerriAI/litellm#30192: 408 after a spike until it is started anew": ("test_a_spike_leaves_nothing_behind",),
    "mostlygeek/llama-swap#225: 504 where the first token takes a minute": (
        "test_a_stream_that_waits_for_its_first_token_is_kept_alive",
        "test_a_placements_own_deadline_ends_an_answer_and_is_named",
    ),
    "gpustack/gpustack#1842: first tokens wait for others": (
        "test_the_first_tokens_of_256_streams_come_while_all_are_held_open",
    ),
    "llm-d/llm-d-router#1109: prompts of 220 KB take a second": (
        "test_a_prompt_of_220_kb_costs_a_few_readings_of_it_as_json_at_most",
        "test_prompts_of_220_kb_of_150_clients_at_once_reach_the_engine_whole",
    ),
    "BerriAI/litellm#28735: the chunk of usage has choices": (
        "test_openai_chat_stream_ends_with_usage_and_no_choices",
    ),
    "BerriAI/litellm#36168: usage is lost where the last chunk has choices": (
        "test_usage_beside_choices_and_cached_tokens_are_told_in_every_format",
    ),
    "BerriAI/litellm#36882: cached tokens are dropped": (
        "test_usage_beside_choices_and_cached_tokens_are_told_in_every_format",
    ),
    "BerriAI/litellm#38926: usage makes arguments come in one burst": (
        "test_arguments_come_piece_by_piece_though_usage_is_asked_for",
    ),
    "ollama/ollama#7881, BerriAI/litellm#33678, openai/codex#7517: calls without an index, all at 0, ids on each": (
        "test_parallel_calls_are_two_in_every_format_however_an_engine_numbers_them",
    ),
    "jjang-ai/vmlx#219: empty deltas and private fields": (
        "test_empty_deltas_and_private_fields_are_told_to_nobody",
        "test_an_answer_put_together_has_no_private_fields",
    ),
    "ollama/ollama#17130: Messages without figures of the cache": ("test_anthropic_reads_the_prompt_cache",),
    "ggml-org/llama.cpp#19494: a line that changes with each request breaks the cache": (
        "test_a_billing_line_that_changes_with_every_request_does_not_change_the_prompt",
    ),
    "mostlygeek/llama-swap#200: Ollama's clients ask for /api/tags": ("test_ollama_lists_what_is_declared",),
    "ollama/ollama#4967, #2208: prompts are cut without a word": (
        "test_too_long_a_prompt_has_both_numbers_in_every_format",
        "test_prompts_are_taken_up_to_the_last_token_that_fits",
    ),
    "lmstudio-ai/lmstudio-bug-tracker#2339: 200 without a word": ("test_an_answer_without_a_word_of_one_is_no_answer",),
    "kserve/kserve#1247, #1641: scaled to zero before it was ever ready": (
        "test_a_load_that_takes_longer_than_its_idle_time_is_never_given_up_before_it_was_ready",
    ),
    "kserve/kserve#2882: 400 for the first request": (
        "test_the_first_request_to_a_model_that_sleeps_or_loads_is_never_a_fault_of_its_own",
    ),
    "envoyproxy/ai-gateway#2327: 503 instead of holding and waking": (
        "test_a_request_to_a_model_that_sleeps_wakes_it_and_is_answered",
    ),
}


def read_names() -> set[str]:
    files = [*TESTS.glob("integration/test_gateway*.py"), *TESTS.glob("unit/gateway/*.py")]
    files.append(TESTS / "unit/controller/test_swapping.py")
    return {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_every_complaint_has_a_test(complaint: str) -> None:
    assert COMPLAINTS[complaint]
    assert set(COMPLAINTS[complaint]) <= read_names()
