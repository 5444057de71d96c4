"""Which fields of Ollama's requests are read, and what becomes of each option."""

CHAT_FIELDS = frozenset(
    ("model", "messages", "tools", "format", "options", "stream", "keep_alive", "think", "truncate", "shift")
)
GENERATE_FIELDS = frozenset(
    (
        "model",
        "prompt",
        "system",
        "images",
        "format",
        "options",
        "stream",
        "keep_alive",
        "raw",
        "think",
        "truncate",
        "shift",
    )
)
EMBED_FIELDS = frozenset(("model", "input", "truncate", "dimensions", "options", "keep_alive"))
EMBEDDINGS_FIELDS = frozenset(("model", "prompt", "options", "keep_alive"))
SHOW_FIELDS = frozenset(("model", "name", "verbose", "system", "template", "options"))
PULL_FIELDS = frozenset(("model", "name", "stream", "insecure", "username", "password"))

# Of any call that doesn't take it.
REFUSED = {
    "_debug_render_only": "the template is applied by the engine, which answers",
    "suffix": "no engine here fills in the middle by this call",
    "template": "the template is the Model's",
    "context": "send the conversation itself, to /api/chat",
    "logprobs": "ask /v1/chat/completions for them",
    "top_logprobs": "ask /v1/chat/completions for them",
    "id_slot": "slots are the gateway's and the engine's to choose",
    "cache_prompt": "the prompt cache is shared by all clients of the engine",
}

KINDS = {
    "messages": "array",
    "tools": "array",
    "images": "array",
    "options": "object",
    "name": "string",
    "prompt": "string",
    "system": "string",
    "stream": "boolean",
    "raw": "boolean",
    "truncate": "boolean",
    "shift": "boolean",
    "insecure": "boolean",
    "verbose": "boolean",
    "dimensions": "number",
}

# Ollama's name of an option, the chat field, and its kind.
OPTIONS = {
    "temperature": ("temperature", "number"),
    "top_k": ("top_k", "number"),
    "top_p": ("top_p", "number"),
    "min_p": ("min_p", "number"),
    "typical_p": ("typical_p", "number"),
    "repeat_penalty": ("repeat_penalty", "number"),
    "repeat_last_n": ("repeat_last_n", "number"),
    "presence_penalty": ("presence_penalty", "number"),
    "frequency_penalty": ("frequency_penalty", "number"),
    "mirostat": ("mirostat", "number"),
    "mirostat_eta": ("mirostat_eta", "number"),
    "mirostat_tau": ("mirostat_tau", "number"),
    "seed": ("seed", "number"),
    "stop": ("stop", "strings"),
}

# How the engine is run is declared in the Placement; clients send these out of habit, with Ollama's own defaults.
IGNORED_OPTIONS = frozenset(
    (
        "draft_num_predict",
        "f16_kv",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_gpu",
        "num_thread",
        "numa",
        "penalize_newline",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    )
)

REFUSED_OPTIONS = {
    "num_keep": "prompts are never cut silently; too long a one is refused with both numbers",
    "tfs_z": "no engine here has tail-free sampling; use `min_p`",
    "logits_all": "ask /v1/chat/completions for `logprobs`",
}
