"""Which fields of OpenAI's requests pass to an engine, and which are refused by name.

A field in neither list is refused too: a typo that is silently dropped costs more than an error that names it, and what
an unknown field does in an engine nobody knows. `model`, `stream`, `stream_options`, `max_tokens` and
`max_completion_tokens` are the gateway's to read; it sends them on as it understood them.
"""

READ = frozenset(("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens"))

# OpenAI's own. What an engine doesn't know (`metadata`, `store`, `user`…) it ignores.
_OPENAI = frozenset(
    (
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "metadata",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    )
)

# Sampling and templating extras that open engines share; clients send them through `extra_body`.
_EXTRAS = frozenset(
    (
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "dynatemp_range",
        "enable_thinking",
        "ignore_eos",
        "include_stop_str_in_output",
        "json_schema",
        "length_penalty",
        "min_keep",
        "min_p",
        "min_tokens",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "parse_tool_calls",
        "reasoning_format",
        "repeat_last_n",
        "repeat_penalty",
        "repetition_penalty",
        "samplers",
        "skip_special_tokens",
        "stop_token_ids",
        "thinking",
        "thinking_budget",
        "timings_per_token",
        "top_a",
        "top_k",
        "top_n_sigma",
        "typical",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
    )
)

PASSED = _OPENAI | _EXTRAS
CHAT_FIELDS = READ | PASSED

# What a value must be, told by its first byte: engines drop some wrong ones without a word, and take others for theirs.
CHAT_KINDS = {
    **dict.fromkeys(
        [
            "frequency_penalty",
            "presence_penalty",
            "temperature",
            "top_p",
            "min_p",
            "typical",
            "typical_p",
            "repeat_penalty",
            "repetition_penalty",
            "length_penalty",
            "dry_base",
            "dry_multiplier",
            "dynatemp_exponent",
            "dynatemp_range",
            "mirostat_eta",
            "mirostat_tau",
            "top_a",
            "top_n_sigma",
            "xtc_probability",
            "xtc_threshold",
            "n",
            "seed",
            "top_logprobs",
            "top_k",
            "repeat_last_n",
            "min_keep",
            "min_tokens",
            "mirostat",
            "dry_allowed_length",
            "dry_penalty_last_n",
        ],
        "number",
    ),
    **dict.fromkeys(
        [
            "logprobs",
            "parallel_tool_calls",
            "store",
            "add_generation_prompt",
            "continue_final_message",
            "enable_thinking",
            "ignore_eos",
            "include_stop_str_in_output",
            "parse_tool_calls",
            "skip_special_tokens",
            "timings_per_token",
        ],
        "boolean",
    ),
    **dict.fromkeys(
        [
            "prompt_cache_key",
            "prompt_cache_retention",
            "reasoning_effort",
            "safety_identifier",
            "service_tier",
            "user",
            "verbosity",
            "reasoning_format",
        ],
        "string",
    ),
    **dict.fromkeys(
        [
            "functions",
            "modalities",
            "samplers",
            "dry_sequence_breakers",
            "stop_token_ids",
        ],
        "array",
    ),
    **dict.fromkeys(
        [
            "audio",
            "logit_bias",
            "metadata",
            "prediction",
            "response_format",
            "web_search_options",
            "chat_template_kwargs",
        ],
        "object",
    ),
    "stop": "strings",
}

# The older completions take no chat, and count the alternatives of a token where the chat says whether.
TEXT_FIELDS = PASSED - frozenset(
    [
        "audio",
        "functions",
        "function_call",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "modalities",
        "prediction",
        "web_search_options",
        "response_format",
        "top_logprobs",
        "reasoning_effort",
        "reasoning_format",
        "chat_template_kwargs",
        "thinking",
        "thinking_budget",
        "enable_thinking",
        "add_generation_prompt",
        "continue_final_message",
        "parse_tool_calls",
    ]
) | {"model", "prompt", "stream", "stream_options", "max_tokens"}

# Names that mean something to every engine; a wrong one is some engines' silence and others' failure.
ENUMS = {"reasoning_format": ("none", "auto", "deepseek", "deepseek-legacy")}

# Where a JSON schema may be.
SCHEMAS = ("response_format", "json_schema", "tools", "functions")

_SLOTS = "slots are the gateway's and the engine's to choose"
_CACHE = "the prompt cache is shared by all clients of the engine"
_WEIGHTS = "what the engine loads is declared in the Model"
_LENGTH = "use `max_tokens`"
_CUT = "prompts are never cut silently; too long a one is refused with both numbers"

# Fields that would let one client touch what all share; the words say why, or what to use instead.
REFUSED = {
    "adapters": _WEIGHTS,
    "adapter": _WEIGHTS,
    "cache_prompt": _CACHE,
    "cache_salt": _CACHE,
    "chat_template": "the template is the Model's; use `chat_template_kwargs` for its variables",
    "data_parallel_rank": _SLOTS,
    "draft_model": _WEIGHTS,
    "grammar": "a grammar can hang or end the engine of all its clients; use `response_format` with a JSON schema",
    "id_slot": _SLOTS,
    "kv_transfer_params": _CACHE,
    "lora": _WEIGHTS,
    "moderation": "nothing is moderated here; ask a moderation service yourself",
    "n_cache_reuse": _CACHE,
    "n_discard": _CUT,
    "n_keep": _CUT,
    "n_predict": _LENGTH,
    "n_probs": "use `logprobs` and `top_logprobs`",
    "num_predict": _LENGTH,
    "priority": "the order of requests is the gateway's to choose",
    "prompt": "use `messages`",
    "response_fields": "answers have OpenAI's shape",
    "slot_id": _SLOTS,
    "t_max_predict_ms": _LENGTH,
    "truncate_prompt_tokens": _CUT,
}
