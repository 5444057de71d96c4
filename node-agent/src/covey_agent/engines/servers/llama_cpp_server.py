"""llama-cpp-python behind our HTTP: one sequence at a time, in the order in which requests came.

The package's own server holds no line, refuses nothing before prefill and has no `/tokenize`. The package's chat call
counts no tokens in a stream; so the prompt is rendered and tokenised here, and tokens are taken one by one, which also
lets a client that went away end its request at the next token.

One sequence, because the library's context has one: more would be more contexts, each with compute buffers of its own.
"""

import codecs
import importlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from covey_agent.engines.servers.sampling import Bound, read_number, read_seed, read_stops
from covey_agent.engines.servers.settings import Settings
from covey_agent.engines.servers.stops import Stops
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
    text_messages,
)

# Who waits longer in line gets an answer elsewhere sooner.
LINE_SECONDS = 600.0
LOOK_SECONDS = 0.2
# `ggml_type` of keys and values.
_TYPES = {"F16": 1, "Q8_0": 8, "Q4_0": 2}
_ALL_LAYERS = -1
_UNDONE = ("tools", "functions", "logprobs", "top_logprobs")
# `Llama.generate`'s argument, its default, and the request's field.
_SAMPLING = (
    ("temp", 0.8, Bound("temperature", 0, 10)),
    ("top_p", 0.95, Bound("top_p", 0, 1)),
    ("top_k", 40, Bound("top_k", -1, (1 << 31) - 1, is_whole=True)),
    ("min_p", 0.05, Bound("min_p", 0, 1)),
    ("typical_p", 1.0, Bound("typical_p", 0, 1)),
    ("repeat_penalty", 1.0, Bound("repeat_penalty", 0, 10)),
    ("frequency_penalty", 0.0, Bound("frequency_penalty", -2, 2)),
    ("presence_penalty", 0.0, Bound("presence_penalty", -2, 2)),
)


def observe_version() -> str:
    return str(importlib.import_module("llama_cpp").__version__)


def serve(settings: Settings) -> int:
    core = LlamaCore(settings)
    server = EngineServer(settings, core)
    core.load()
    server.serve_forever()
    return 0


class LlamaCore:
    """`load` first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._library: Any = None
        self._llama: Any = None
        self._turn = threading.Lock()
        self._made_tokens = 0
        self._asked: set[EngineHandler] = set()

    def load(self) -> None:
        settings = self._settings
        self._library = importlib.import_module("llama_cpp")
        try:
            self._llama = self._library.Llama(
                str(settings.model),
                n_ctx=settings.window,
                n_batch=settings.batch,
                n_ubatch=settings.micro_batch,
                n_threads=settings.threads,
                n_threads_batch=settings.threads,
                n_gpu_layers=_ALL_LAYERS if settings.accelerator else 0,
                offload_kqv=settings.accelerator,
                use_mmap=False,
                use_mlock=settings.mlock,
                flash_attn=True,
                type_k=_TYPES[settings.cache_type],
                type_v=_TYPES[settings.cache_type],
                verbose=True,
            )
        except (ValueError, RuntimeError) as error:
            raise LoadFailed(str(error)) from error
        self._llama.verbose = False  # from here on it would print of prompts
        self._format = self._make_formatter()

    def _make_formatter(self) -> Callable[[list[Body], Body], str]:
        """The template of the file itself."""
        llama = self._llama
        template = llama.metadata.get("tokenizer.chat_template")
        if not template:
            words = (
                "the file has no chat template (`tokenizer.chat_template`); 'LlamaServer' serves it with one of its own"
            )
            raise Unfit(words)

        def text_of(token: int) -> str:
            return str(llama.detokenize([token], special=True).decode("utf-8", "replace")) if token >= 0 else ""

        formatter = self._library.llama_chat_format.Jinja2ChatFormatter(
            template, eos_token=text_of(llama.token_eos()), bos_token=text_of(llama.token_bos())
        )

        def render(messages: list[Body], variables: Body) -> str:
            try:
                return str(formatter(messages=messages, **variables).prompt)
            except Exception as error:  # a template raises what it likes about the messages
                raise invalid(f"the model's chat template refuses these messages: {str(error)[:200]}") from error

        return render

    def check_health(self) -> None:
        """It is loaded, or nobody would be answered."""

    def count_work(self) -> int:
        """Tokens in the context, which grow with each batch of a prompt, and all that were made before."""
        return self._made_tokens + int(self._llama.n_tokens)

    def count_asked(self) -> int:
        """Each is generated for by the thread that took it: while there is none, there is none that could be dead."""
        return len(self._asked)

    def tokenize(self, text: str) -> list[int]:
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=True))

    def count_prompt(self, body: Body) -> int:
        _refuse_undone(body)
        return len(self._render_prompt(body))

    def answer_chat(self, handler: EngineHandler, body: Body) -> None:
        self._asked.add(handler)
        try:
            self._answer_chat(handler, body)
        finally:
            self._asked.discard(handler)

    def _answer_chat(self, handler: EngineHandler, body: Body) -> None:
        _refuse_undone(body)
        if body.get("n") not in (None, 1):
            raise invalid("`n` must be 1")
        prompt = self._render_prompt(body)
        if len(prompt) >= self._settings.window:
            raise refuse_too_long(len(prompt), self._settings.window)
        answer = Answer(handler, body, len(prompt), self._settings.name)
        max_tokens = choose_max_tokens(body, len(prompt), self._settings.window)
        sampling, stops, seed = parse_sampling(body), Stops(read_stops(body)), read_seed(body)
        grammar = self._make_grammar(body)
        self._wait_for_turn(handler)
        try:
            if seed is not None:
                self._llama.set_seed(seed)
            tokens = self._llama.generate(prompt, grammar=grammar, **sampling)
            answer.give(self._read_pieces(tokens, max_tokens, stops, answer, handler))
        finally:
            self._turn.release()

    def _render_prompt(self, body: Body) -> list[int]:
        variables = read_object(body, "chat_template_kwargs")
        if "messages" in variables:
            raise invalid("`chat_template_kwargs` must not hold `messages`")
        text = self._format(text_messages(body), variables)
        bos = self._llama.metadata.get("tokenizer.ggml.add_bos_token") == "true"
        tokens = list(self._llama.tokenize(text.encode(), add_bos=bos, special=True))
        # A template may have written the first token already.
        doubled = bos and len(tokens) > 1 and tokens[0] == tokens[1] == self._llama.token_bos()
        return tokens[1:] if doubled else tokens

    def _make_grammar(self, body: Body) -> Any:
        wanted = read_object(body, "response_format")
        kind = wanted.get("type", "text")
        if kind == "text":
            return None
        if kind not in ("json_object", "json_schema"):
            raise invalid("`response_format.type` must be 'text', 'json_object' or 'json_schema'")
        named = read_object(wanted, "json_schema")
        schema = read_object(named, "schema") if kind == "json_schema" else {"type": "object"}
        try:
            return self._library.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
        except Exception as error:  # the converter raises what it likes about a schema
            raise invalid(f"`response_format.json_schema` can't be used: {str(error)[:200]}") from error

    def _wait_for_turn(self, handler: EngineHandler) -> None:
        deadline = time.monotonic() + LINE_SECONDS
        while not self._turn.acquire(timeout=LOOK_SECONDS):
            if handler.is_client_gone():
                raise ConnectionAbortedError
            if time.monotonic() > deadline:
                raise Refused(503, "unavailable_error", f"the line did not move on for {LINE_SECONDS:.0f} s")

    def _read_pieces(
        self, tokens: Iterator[int], max_tokens: int, stops: Stops, answer: "Answer", handler: EngineHandler
    ) -> Iterator[str]:
        """Texts as they become whole characters; `answer` learns the count and the reason of the end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        vocabulary = self._llama._model.vocab
        answer.finish = "length"
        for token in tokens:
            answer.completion_tokens += 1
            self._made_tokens += 1
            if self._library.llama_vocab_is_eog(vocabulary, token):
                answer.finish = "stop"
                break
            piece = stops.take(decoder.decode(self._llama.detokenize([token], special=False)))
            if piece:
                yield piece
            if stops.is_met:
                answer.finish, answer.stop = "stop", stops.met
                return
            if answer.completion_tokens >= max_tokens:
                break
            if handler.is_client_gone():
                raise ConnectionAbortedError
        if rest := stops.take(decoder.decode(b"", final=True)) + stops.rest():
            yield rest


class Answer:
    """One answer in OpenAI's shape, as events or whole."""

    def __init__(self, handler: EngineHandler, body: Body, prompt_tokens: int, model: str) -> None:
        self._handler = handler
        self._is_stream = bool(body.get("stream"))
        self._has_usage = bool(read_object(body, "stream_options").get("include_usage"))
        self._prompt_tokens = prompt_tokens
        self._base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.completion_tokens = 0
        self.finish = "stop"
        self.stop: str | None = None
        """The stop text that ended it."""

    def give(self, pieces: Iterator[str]) -> None:
        if not self._is_stream:
            text = "".join(pieces)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": self.finish, "stop_reason": self.stop}
            content = {**self._base, "object": "chat.completion", "choices": [choice], "usage": self._usage()}
            self._handler.send_json(200, content)
            return
        self._handler.begin_events()
        self._send({"role": "assistant", "content": ""}, None)
        for piece in pieces:
            self._send({"content": piece}, None)
        self._send({}, self.finish)
        if self._has_usage:
            self._handler.send_event(
                {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}
            )
        self._handler.end_events()

    def _send(self, delta: Body, finish: str | None) -> None:
        choice: Body = {"index": 0, "delta": delta, "finish_reason": finish}
        if finish is not None and self.stop is not None:
            choice["stop_reason"] = self.stop
        self._handler.send_event({**self._base, "object": "chat.completion.chunk", "choices": [choice]})

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self._prompt_tokens + self.completion_tokens,
        }


def _refuse_undone(body: Body) -> None:
    for field in _UNDONE:
        if body.get(field):
            raise invalid(f"`{field}` is not done by engine 'LlamaCpp'; 'LlamaServer' does it")


def parse_sampling(body: Body) -> dict[str, float]:
    """Arguments of `Llama.generate`. Refused names the field."""
    found: dict[str, float] = {}
    for argument, default, bound in _SAMPLING:
        value = read_number(body, bound)
        found[argument] = default if value is None else value
    return found
