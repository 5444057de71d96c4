"""One rank of mlx-lm in a ring: what makes the ranks compute the same from the same.

Every rank runs mlx-lm's own loop. Rank 0 takes requests and hands each of them to the others before anybody looks at it
(mlx-lm does that); then all go through the same steps, and each step is a collective in which all meet. A rank that
decided anything by itself would wait for ever for a step that no other takes. So here:

- tokens are chosen by rank 0 and told to the others, whose processors may round otherwise;
- nothing is kept of earlier prompts: how much of them stays depends on the bytes of a rank's own layers and on when
  requests come, and a rank that kept another prompt than its neighbour would read another length of the next;
- requests run in batches alone: outside of them a client that leaves ends the loop of rank 0 and no other's.
"""

import importlib
import io
import pickle
import time
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from covey_agent.engines.servers.settings import Settings

# The exit status of a rank that ended because it lost its neighbours, and for nothing of its own.
RING_LOST = 76
# Of one that waited too long for the others in a step.
RING_STUCK = 77
_RING_WORDS = "[ring]"

Sampler = Callable[[Any], Any]


class RingLost(Exception):
    """The ranks did not find each other, or one is gone."""


class RingStuck(RingLost):
    """A step took too long: another rank's process is there and computes nothing."""


def is_ring_lost(error: BaseException) -> bool:
    """Whether mlx says of its connections to other ranks that they are gone."""
    return isinstance(error, RingLost) or _RING_WORDS in str(error)


def join_ring(settings: Settings) -> None:
    """Meet the neighbours, by the addresses in the environment. Blocks until both are there; RingLost."""
    core: Any = importlib.import_module("mlx.core")
    try:
        group = core.distributed.init(strict=True, backend="ring")
    except RuntimeError as error:
        raise RingLost(f"rank {settings.rank} failed to find its ring: {error}") from error
    if group.rank() != settings.rank or core.distributed.init().size() != group.size():
        raise RingLost(f"rank {settings.rank} failed: it found itself as rank {group.rank()} of {group.size()}")


class Steps:
    """When the loop in which all ranks meet came round last."""

    def __init__(self) -> None:
        self.count()

    def count(self) -> None:
        self._last = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._last


def hold_together(library: Any, settings: Settings, steps: Steps) -> None:
    """`library`: `mlx_lm.server`, before anything is loaded by it."""
    core: Any = importlib.import_module("mlx.core")
    theirs, told = library._make_sampler, _tell_tokens(core, settings.rank)
    greedy = told(importlib.import_module("mlx_lm.sample_utils").greedy_sampler)

    def make_sampler(arguments: Any, tokenizer: Any) -> Sampler:
        # One object for all that are greedy: a batch whose rows share their sampler is sampled at once.
        return greedy if arguments.sampling.temperature == 0 else told(theirs(arguments, tokenizer))

    library._make_sampler = make_sampler
    library.ResponseGenerator._is_batchable = _is_batchable
    library.ResponseGenerator._run_generate = _generate_once
    library.pickle = Requests(library)
    _count_steps(library, steps)
    if settings.layers:
        _share_layers(settings.layers)


class Requests:
    """In the place of `pickle` in mlx-lm's server: what ranks tell each other is its own records of requests and plain
    values. Whatever else is named in there is refused, and ends this rank: it would be code of whoever holds another.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def dumps(self, told: Any) -> bytes:
        return pickle.dumps(told)

    def loads(self, data: Any) -> Any:
        return _Reader(self._library, bytes(memoryview(data))).load()


class _Reader(pickle.Unpickler):
    def __init__(self, library: Any, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._library = library

    def find_class(self, module: str, name: str) -> Any:
        found = getattr(self._library, name, None) if module == self._library.__name__ else None
        if isinstance(found, type) and is_dataclass(found):
            return found
        raise pickle.UnpicklingError(f"a rank was told of '{module}.{name}', which is no part of a request")


def _is_batchable(generator: Any, arguments: Any) -> bool:
    """Whatever the request asks; what would not do in a batch is refused before."""
    return bool(generator.model_provider.is_batchable)


def _count_steps(library: Any, steps: Steps) -> None:
    """mlx-lm's loop asks for a request where nothing is under way, and for time before each step where something is."""
    next_request, next_step = library.ResponseGenerator._next_request, library.TimeBudget.__next__

    def counted_request(self: Any, timeout: Any = None) -> Any:
        found = next_request(self, timeout)
        steps.count()
        return found

    def counted_step(self: Any) -> Any:
        steps.count()
        return next_step(self)

    library.ResponseGenerator._next_request = counted_request
    library.TimeBudget.__next__ = counted_step


def _generate_once(generator: Any) -> None:
    """As mlx-lm's own, but for what is remembered of the end."""
    try:
        generator._generate()
    except Exception as error:
        generator.model_provider.failure = generator.model_provider.failure or error
        generator._generation_failed = True


def _tell_tokens(core: Any, rank: int) -> Callable[[Sampler], Sampler]:
    """What rank 0 chose, on every rank: the sum of its tokens and the others' zeros."""

    def told(choose: Sampler) -> Sampler:
        def sampler(logprobs: Any) -> Any:
            tokens = choose(logprobs)
            return core.distributed.all_sum(core.zeros_like(tokens) if rank else tokens)

        return sampler

    return told


def _share_layers(layers: tuple[int, ...]) -> None:
    """As they are stamped: by itself mlx-lm gives every rank as many."""
    mixin: Any = importlib.import_module("mlx_lm.models.pipeline").PipelineMixin
    theirs = mixin.pipeline

    def pipeline(self: Any, group: Any, split: Any = None) -> None:
        theirs(self, group, split or list(layers))

    mixin.pipeline = pipeline


def make_no_prompt_cache(library: Any) -> Any:
    """mlx-lm's cache of prompts, which keeps none."""

    def fetch_nearest_cache(self: Any, model: Any, tokens: Any) -> Any:
        return None, tokens

    def insert_cache(self: Any, model: Any, tokens: Any, *arguments: Any, **named: Any) -> None:
        return None

    changed = {"fetch_nearest_cache": fetch_nearest_cache, "insert_cache": insert_cache}
    return type("NoCache", (library.LRUPromptCache,), changed)(1)
