"""Taints and tolerations: which taint of a node keeps a wish away. What runs already is never asked.

A toleration names a key: one for every key, as Kubernetes has it, would also tolerate taints that nobody thought of.
"""

from collections.abc import Sequence

from covey_api.node import Taint
from covey_api.placement import Toleration, TolerationOperator


def find_untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint, by key, that no toleration matches."""
    kept_away = [taint for taint in taints if not any(_is_match(each, taint) for each in tolerations)]
    return min(kept_away, key=lambda taint: taint.key, default=None)


def _is_match(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key:
        return False
    return toleration.operator is TolerationOperator.EXISTS or toleration.value == taint.value
