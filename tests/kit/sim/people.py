"""People who edit the source: valid sets, broken ones, an emptied folder, changes of mind in the middle of a roll."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from covey_simulator.disk import stamp_file
from covey_simulator.story import Story
from covey_simulator.wishes import Wishes

MODELS = ("m0", "m1")
_MODEL = """apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  tasks: [Chat]
  variants:
  - name: gguf
    format: Gguf
    source: file:///models/{name}.gguf
    engines: [LlamaServer]
"""
# In seeds of many kinds: the first of two variants is the larger.
_LARGE = """  - name: large
    format: Gguf
    source: file:///models/{name}-large.gguf
    engines: [LlamaServer]
"""
_PLACEMENT = """apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: {name}}}
spec:
  modelRef: {{name: {wish.model}}}
  replicas: {wish.replicas}
  concurrency: 2
  context: {{tokens: {wish.context_tokens}}}
  rollout: {{strategy: {wish.strategy}, drainSeconds: {wish.drain_seconds}}}
  timeouts: {{startupSeconds: 20, holdSeconds: 15}}
"""
_SCALING = """  scaling: {{min: {least}, max: 2, target: 2, idleSeconds: 20, minDwellSeconds: {dwell}}}
"""
_RANK = """  priority: {wish.priority}
  preemption: {preemption}
"""
_SHAPE = """  shape: {{type: {shape}}}
"""
# In seeds of groups: the second model fits no machine alone.
WIDE_MODEL = MODELS[1]
# How long what runs by `scaling` serves at least before it makes room.
DWELL_SECONDS = 5


_NODE = """apiVersion: covey.dev/v1alpha1
kind: Node
metadata: {{name: {name}}}
spec: {{unschedulable: {unschedulable}}}
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """One Placement, as far as these people write it."""

    model: str
    replicas: int
    context_tokens: int
    strategy: str
    drain_seconds: int
    least: int | None = None
    """As many as are asked for, but at least so many; None: `replicas`."""
    priority: int | None = None
    """None: it says nothing of it, and displaces nobody."""
    is_displacing: bool = False
    shape: str = field(default="", repr=False)
    """Over how many nodes; empty: it says nothing of it. Told apart: seeds without it tell what they told before."""

    def render(self, name: str) -> str:
        scaling = "" if self.least is None else _SCALING.format(least=self.least, dwell=DWELL_SECONDS)
        preemption = "LowerPriority" if self.is_displacing else "Never"
        rank = "" if self.priority is None else _RANK.format(wish=self, preemption=preemption)
        shape = _SHAPE.format(shape=self.shape) if self.shape else ""
        return _PLACEMENT.format(name=name, wish=self) + scaling + rank + shape


def render_models(*, has_large: bool, has_wide: bool = False) -> str:
    texts = [_MODEL.format(name=name) for name in MODELS]
    if has_wide:
        texts[1] = texts[1].replace(f"{WIDE_MODEL}.gguf", f"{WIDE_MODEL}-wide.gguf")
    if not has_large:
        return "---\n".join(texts)
    first = "  variants:\n"
    larger = (text.replace(first, first + _LARGE.format(name=name)) for name, text in zip(MODELS, texts, strict=True))
    return "---\n".join(larger)


@dataclass(slots=True)
class People:
    folder: Path
    random: Random
    story: Story
    said: Wishes
    wishes: dict[str, Wish] = field(default_factory=dict[str, Wish])
    """The last valid set that they wrote."""
    scaling: Random | None = None
    """Decides which Placements scale; None: none does, and clients don't wait."""
    ranks: Random | None = None
    """Decides who comes before whom; None: all are equal."""
    has_large: bool = False
    """Whether models have a second, larger variant, which is preferred."""
    groups: Random | None = None
    """Decides which Placements are wished over several nodes; None: none is."""
    _ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def make_wish(self) -> Wish:
        pick = self.random.choice
        wish = Wish(
            model=pick(MODELS),
            replicas=pick((1, 1, 2, 3)),
            context_tokens=pick((512, 1024, 2048)),
            strategy=pick(("Surge", "Surge", "Recreate")),
            drain_seconds=pick((5, 20, 60)),
            least=self.scaling.choice((None, 0, 0, 0, 0, 0, 1)) if self.scaling else None,
            priority=self.ranks.choice((0, 0, 1, 2)) if self.ranks else None,
            is_displacing=bool(self.ranks and self.ranks.random() < 0.6),
        )
        if self.groups is None:
            return wish
        shape = "Auto" if wish.model == WIDE_MODEL else self.groups.choice(("Rpc", "Rpc", "Auto", ""))
        return replace(wish, shape=shape, replicas=min(wish.replicas, 2))

    def begin(self, count: int) -> None:
        self.save("models.yaml", render_models(has_large=self.has_large, has_wide=self.groups is not None))
        for index in range(count):
            wish = self.make_wish()
            if self.scaling:  # several models on few machines
                wish = replace(wish, model=MODELS[index % len(MODELS)])
            if self.ranks:  # all is full before anybody is more important
                wish = replace(wish, replicas=3, priority=0)
            self.wish(f"p{index}", wish, 0.0)

    def wish(self, name: str, wish: Wish | None, now: float) -> None:
        """Write a Placement's file, or remove it."""
        if wish is None:
            self.wishes.pop(name, None)
            self.said.wished_at.pop(("default", name), None)
            (self.folder / f"{name}.yaml").unlink(missing_ok=True)
            self.story.tell("people", f"delete placement {name}")
            return
        self.wishes[name] = wish
        self.said.wished_at.setdefault(("default", name), now)
        self.save(f"{name}.yaml", wish.render(name))
        self.story.tell("people", f"wish {name}: {wish}" + (f" of shape {wish.shape}" if wish.shape else ""))

    def cordon(self, name: str, *, is_on: bool, now: float) -> None:
        self.said.cordons[name], self.said.changed_at[name] = is_on, now
        if self.said.broken != "empty":
            self.save(f"node-{name}.yaml", _NODE.format(name=name, unschedulable=str(is_on).lower()))
        self.story.tell("people", f"{'cordon' if is_on else 'uncordon'} node {name}")

    def edit(self, now: float) -> None:
        """One change of mind."""
        if self.said.broken:
            self.repair(now)
            return
        name = self.random.choice(sorted({*self.wishes, "p0", "p1", "p2"}))
        wish, kind = self.wishes.get(name), self.random.randrange(10)
        if wish is None:
            self.wish(name, self.make_wish(), now)
        elif self.ranks is not None and self.ranks.random() < 0.7:
            displaces = self.ranks.random() < 0.6
            self.wish(name, replace(wish, priority=self.ranks.choice((0, 1, 2)), is_displacing=displaces), now)
        elif kind < 3:
            self.wish(name, replace(wish, replicas=self.random.randrange(0, 4)), now)
        elif kind < 6:
            self.wish(name, replace(wish, context_tokens=self.random.choice((512, 1024, 2048))), now)
        elif kind < 7:
            self.wish(name, replace(wish, strategy=self.random.choice(("Surge", "Recreate"))), now)
        elif kind < 8 and len(self.wishes) > 1:
            self.wish(name, None, now)
        elif kind < 9:
            self.break_set()
        else:
            self.empty()

    def break_set(self) -> None:
        self.said.broken = "invalid"
        self.save(
            "broken.yaml", "apiVersion: covey.dev/v1alpha1\nkind: Placement\nmetadata: {name: p9}\nspec: {x: 1}\n"
        )
        self.story.tell("people", "write an invalid document")

    def empty(self) -> None:
        self.said.broken = "empty"
        for path in sorted(self.folder.glob("*.yaml")):
            path.unlink()
        self.story.tell("people", "empty the source")

    def repair(self, now: float) -> None:
        """The last valid set is written whole again."""
        (self.folder / "broken.yaml").unlink(missing_ok=True)
        if self.said.broken == "empty":
            self.save("models.yaml", render_models(has_large=self.has_large, has_wide=self.groups is not None))
            for name, wish in sorted(self.wishes.items()):
                self.save(f"{name}.yaml", wish.render(name))
            for name, is_on in sorted(self.said.cordons.items()):
                self.save(f"node-{name}.yaml", _NODE.format(name=name, unschedulable=str(is_on).lower()))
        self.said.broken = ""
        self.said.changed_at |= dict.fromkeys(self.said.changed_at, now)
        self.story.tell("people", "repair the source")

    def save(self, name: str, text: str) -> None:
        """As an editor saves: another file takes the name. Times are counted, so that no two saves look alike."""
        temporary = self.folder / f".{name}.tmp"
        temporary.write_text(text)
        stamp_file(str(temporary), next(self._ticks))
        temporary.rename(self.folder / name)
