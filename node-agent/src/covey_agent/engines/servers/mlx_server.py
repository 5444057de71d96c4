"""mlx-lm's server under our launcher: its generation and its answers, our door.

Its own door lets a request choose what is loaded (`model`, `adapters`, `draft_model`: an unknown name unloads what is
there), fetches images from any address, refuses no prompt however long, and says 200 while generation is dead. Here
every request is checked and its prompt counted first; then mlx-lm's handler answers it, with its batching, tools and
thoughts. When generation dies the process ends: a server that can't generate is worse than none.

Keys and values of running requests and of kept prompts share the bytes that were stamped: kept ones yield.

A draft model (`--draft`) is mlx-lm's speculative decoding, which runs one request at a time. What it can't do for a
model it does wrongly or says at each request, so `servers.mlx_draft` looks at both first.

Of a ring (`servers.mlx_ring`) each rank is such a process. Rank 0 answers; the others say no more than that they are
there.
"""

import importlib
import inspect
import io
import json
import logging
import os
import sys
import threading
import time
from argparse import Namespace
from http.client import HTTPMessage
from importlib import metadata
from typing import Any, cast

from covey_agent.engines.servers.mlx_draft import DRAFT_TOKENS, require_fitting_draft
from covey_agent.engines.servers.mlx_loads import tell_loads
from covey_agent.engines.servers.mlx_ring import (
    RING_LOST,
    RING_STUCK,
    RingLost,
    RingStuck,
    Steps,
    hold_together,
    is_ring_lost,
    join_ring,
    make_no_prompt_cache,
)
from covey_agent.engines.servers.mlx_weights import list_weights
from covey_agent.engines.servers.sampling import choose_mlx_fields, refuse_variables, settle_mlx_choices
from covey_agent.engines.servers.settings import Settings
from covey_agent.engines.servers.web import (
    Body,
    EngineHandler,
    EngineServer,
    LoadFailed,
    Refused,
    Unfit,
    choose_max_tokens,
    invalid,
    read_object,
    refuse_too_long,
    report_failure,
    text_messages,
)

LOOK_SECONDS = 0.1
# Kept prompts a slot: a conversation's last turn and what its system prompt shares with others.
KEPT_PER_SLOT = 4
# Shorter ones are read again in no time, and would push out longer ones: the agent's own looks are such.
LEAST_KEPT_TOKENS = 64
_BITS = {"F16": None, "Q8_0": 8, "Q4_0": 4}


def observe_version() -> str:
    importlib.import_module("mlx_lm.server")
    core = importlib.import_module("mlx.core")
    return f"{metadata.version('mlx-lm')} (mlx {metadata.version('mlx')}, {core.default_device()})"


def serve(settings: Settings) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    core = MlxCore(settings)
    server = EngineServer(settings, core)
    try:
        core.load()
    except RingLost as lost:
        report_failure(lost)
        return RING_LOST
    threading.Thread(target=core.end_with_generation, daemon=True).start()
    server.serve_forever()
    return 0


class Passes:
    """How often models computed anything."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, model: Any) -> None:
        kind = cast(Any, type(model))

        def call(this: Any, *arguments: Any, **named: Any) -> Any:
            self.count += 1
            return kind.__call__(this, *arguments, **named)

        model.__class__ = type(kind.__name__, (kind,), {"__call__": call})


class Budget:
    """Tokens that running requests may still come to, so that kept prompts leave them room."""

    def __init__(self, settings: Settings) -> None:
        cells = max(1, settings.slots * settings.window)
        self._total_bytes = settings.cache_bytes
        self._bytes_per_token = settings.cache_bytes / cells
        self._lock = threading.Lock()
        self._promised_tokens = 0

    @property
    def spare_bytes(self) -> int:
        return max(0, int(self._total_bytes - self._promised_tokens * self._bytes_per_token))

    def promise(self, tokens: int) -> None:
        with self._lock:
            self._promised_tokens += tokens


class MlxCore:
    """`load` first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._library: Any = None
        self._budget = Budget(settings)
        self._provider: Any = None
        self._generator: Any = None
        self._vocabulary = 0
        self._steps = Steps()
        self._passes = Passes()
        self._no_variables: frozenset[str] = frozenset()

    def load(self) -> None:
        """Weights are loaded by the thread that generates: their arrays belong to its stream."""
        self._library = importlib.import_module("mlx_lm.server")
        if self._settings.is_rank:
            join_ring(self._settings)
            hold_together(self._library, self._settings, self._steps)
        else:
            tell_loads(self._library)
        self._library.maybe_set_recommended_wired_limit()
        self._provider = _make_provider(self._library, self._arguments())
        if self._settings.is_rank:
            kept = make_no_prompt_cache(self._library)
        else:
            kept = _make_prompt_cache(self._library, KEPT_PER_SLOT * self._settings.slots, self._budget)
        self._generator = self._library.ResponseGenerator(self._provider, kept)
        while self._provider.tokenizer is None or self._provider.is_loading:
            if not self._generator.generation_available():
                raise self._provider.failure or LoadFailed("the thread that loads ended without a word")
            time.sleep(LOOK_SECONDS)
        self._steps.count()
        for model in (self._provider.model, self._provider.draft_model):
            if model is not None:
                self._passes.watch(model)
        tokenizer = self._provider.tokenizer
        self._vocabulary = max(tokenizer.get_vocab().values()) + 1
        theirs = inspect.signature(tokenizer._tokenizer.apply_chat_template).parameters
        self._no_variables = frozenset(theirs) | {"messages"}

    def _arguments(self) -> Namespace:
        """mlx-lm's own options, all of them: none is left to a default of another version."""
        settings, model = self._settings, self._settings.model
        if settings.layers:
            model = list_weights(model, settings.key_file.parent)
        return Namespace(
            model=str(model),
            adapter_path=None,
            draft_model=None if settings.draft is None else str(settings.draft),
            num_draft_tokens=0 if settings.draft is None else DRAFT_TOKENS,
            allowed_origins=[],
            trust_remote_code=False,
            chat_template="",
            use_default_chat_template=settings.default_chat_template,
            chat_template_args={},
            temp=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            max_tokens=settings.window,
            decode_concurrency=settings.slots,
            prompt_concurrency=settings.slots,
            prefill_step_size=settings.micro_batch,
            prompt_cache_size=KEPT_PER_SLOT * settings.slots,
            prompt_cache_bytes=settings.cache_bytes,
            kv_bits=_BITS[settings.cache_type],
            kv_group_size=64,
            quantized_kv_start=0,
            pipeline=bool(settings.layers),
            log_level="WARNING",
        )

    def end_with_generation(self) -> None:
        """End this process when nothing can be generated any more."""
        while self._generator.generation_available() and not self._is_stuck():
            time.sleep(LOOK_SECONDS)
        failure = self._provider.failure or RuntimeError("the thread that generates ended")
        if self._is_stuck():
            seconds = f"{self._settings.step_seconds:.0f} s"
            failure = RingStuck(
                f"rank {self._settings.rank} failed after {seconds} without a step: another one is stuck"
            )
        report_failure(failure)
        sys.stderr.flush()
        if isinstance(failure, RingStuck):
            os._exit(RING_STUCK)
        os._exit(RING_LOST if self._settings.is_rank and is_ring_lost(failure) else 1)

    def _is_stuck(self) -> bool:
        return self._settings.is_rank and self._steps.silent_seconds > self._settings.step_seconds

    def check_health(self) -> None:
        if not self._generator.generation_available():
            raise Refused(503, "unavailable_error", "the thread that generates has ended")

    def count_work(self) -> int:
        """Steps of prompts and answers. mlx-lm tells a stream of each, unless it drafts."""
        return self._passes.count

    def count_asked(self) -> None:
        """Told by no page: threads that take requests live on when the one that generates is dead."""

    def tokenize(self, text: str) -> list[int]:
        return list(self._provider.tokenizer.encode(text, add_special_tokens=False))

    def answer_chat(self, handler: EngineHandler, body: Body) -> None:
        self._require_answers(body)
        if read_object(body, "response_format").get("type", "text") != "text":
            raise invalid("`response_format` is not done by engine 'Mlx'; 'LlamaServer' does it")
        settle_mlx_choices(body)
        prompt_tokens = self.count_prompt(body)
        window = self._settings.window
        if prompt_tokens >= window:
            raise refuse_too_long(prompt_tokens, window)
        max_tokens = choose_max_tokens(body, prompt_tokens, window)
        wanted = choose_mlx_fields(body, self._vocabulary, self.tokenize)
        named = {"model": self._settings.name, "messages": body["messages"], "max_tokens": max_tokens}
        asked = wanted | named
        self._budget.promise(prompt_tokens + max_tokens)
        try:
            self._forward(handler, json.dumps(asked).encode())
        finally:
            self._budget.promise(-prompt_tokens - max_tokens)

    def _require_answers(self, body: Body) -> None:
        if not self._settings.answers:
            raise Refused(503, "unavailable_error", f"this is rank {self._settings.rank} of a ring; rank 0 answers")
        if self._settings.is_rank and body.get("seed") is not None:
            raise invalid("`seed` is not done by a model over several nodes; leave it out")

    def count_prompt(self, body: Body) -> int:
        """Tokens of the prompt, as mlx-lm will make it from the same messages."""
        messages = json.loads(json.dumps(text_messages(body)))
        tokenizer = self._provider.tokenizer
        if not tokenizer.has_chat_template:
            return len(tokenizer.encode(self._library.convert_chat(messages)))
        variables = read_object(body, "chat_template_kwargs")
        refuse_variables(variables, self._no_variables)
        try:
            self._library.process_message_content(messages)
            tokens = tokenizer.apply_chat_template(
                messages, tools=body.get("tools") or None, tokenize=True, add_generation_prompt=True, **variables
            )
        except Exception as error:  # a template raises what it likes about the messages
            raise invalid(f"the model's chat template refuses these messages: {str(error)[:200]}") from error
        return len(tokens)

    def _forward(self, handler: EngineHandler, content: bytes) -> None:
        """mlx-lm's own handler on this connection, with the body that was checked."""
        theirs = self._library.APIHandler
        delegate: Any = theirs.__new__(theirs)  # its __init__ would read a request
        for name, value in vars(handler).items():
            setattr(delegate, name, value)
        heads = HTTPMessage()
        heads["Content-Length"] = str(len(content))
        delegate.headers = heads
        delegate.rfile = io.BytesIO(content)
        delegate.created = int(time.time())
        delegate.response_generator = self._generator
        delegate.system_fingerprint = "covey"
        delegate.log_message = handler.log_message
        delegate.do_POST()


def _make_provider(library: Any, arguments: Namespace) -> Any:
    """A ModelProvider that loads once: whatever a request names is what is loaded."""

    def load(self: Any, model_path: str, adapter_path: str | None = None, draft_model_path: str | None = None) -> Any:
        try:
            loaded = library.ModelProvider.load(self, "default_model", None, "default_model")
            if self.is_loading and self.draft_model is not None:
                require_fitting_draft(library, self)
        except (MemoryError, Unfit) as error:
            self.failure = error
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            self.failure = RingLost(words) if is_ring_lost(error) else LoadFailed(words)
            raise
        self.is_loading = False
        return loaded

    provider = type("OneModel", (library.ModelProvider,), {"load": load})
    fields = {"failure": None, "is_loading": True}
    for name, value in fields.items():
        setattr(provider, name, value)
    return provider(arguments)


def _make_prompt_cache(library: Any, count: int, budget: Budget) -> Any:
    """mlx-lm's cache of prompts, which gives way to what running requests were promised."""

    def fetch_nearest_cache(self: Any, model: Any, tokens: Any) -> Any:
        self.trim_to(n_bytes=budget.spare_bytes)
        return library.LRUPromptCache.fetch_nearest_cache(self, model, tokens)

    def insert_cache(self: Any, model: Any, tokens: Any, *arguments: Any, **named: Any) -> None:
        if len(tokens) < LEAST_KEPT_TOKENS:
            return
        library.LRUPromptCache.insert_cache(self, model, tokens, *arguments, **named)
        self.trim_to(n_bytes=budget.spare_bytes)

    yielding = type(
        "YieldingCache",
        (library.LRUPromptCache,),
        {"fetch_nearest_cache": fetch_nearest_cache, "insert_cache": insert_cache},
    )
    return yielding(count)
