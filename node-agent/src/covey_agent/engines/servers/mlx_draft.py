"""Whether a model can be drafted for, and by this draft: what mlx-lm doesn't look at, or too late.

Guesses that were wrong are taken back out of both caches. One that slides or is a state can't give back what it forgot:
mlx-lm then refuses each request, or goes on with a wrong cache. And a draft with another vocabulary guesses other
words; mlx-lm warns where the sizes differ.
"""

import importlib
from pathlib import Path
from typing import Any

from covey_agent.engines.servers.web import Unfit

# Guesses that are checked at a time, as mlx-lm's own default is.
DRAFT_TOKENS = 3
# Added tokens that one of both lacks.
_MAX_DIFFERENT = 128


def require_fitting_draft(library: Any, provider: Any) -> None:
    """Unfit says why not. Both are loaded."""
    for what, model in (("the model", provider.model), ("its draft", provider.draft_model)):
        kinds = sorted({type(each).__name__ for each in library.make_prompt_cache(model)} - {"KVCache"})
        if kinds:
            raise Unfit(f"{what} keeps a {' and a '.join(kinds)}, for which mlx-lm can't draft: leave `draft` out")
    draft = importlib.import_module("mlx_lm.utils").load_tokenizer(Path(provider.cli_args.draft_model))
    if different := count_different(provider.tokenizer.get_vocab(), draft.get_vocab()):
        raise Unfit(f"{different} tokens of the model are others in its `draft`, which must have the same vocabulary")


def count_different(model: dict[str, int], draft: dict[str, int]) -> int:
    """Tokens of the model that have no such number in the draft; 0: as few as tell nothing."""
    different = sum(draft.get(token) != number for token, number in model.items())
    return different if different > _MAX_DIFFERENT else 0
