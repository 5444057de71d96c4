"""Variants by how many requests a replica is expected to have at a time."""

from dataclasses import replace

import pytest
from covey_api.engines import ArtifactFormat, Compute, EngineName
from covey_planner.choice import choose
from covey_planner.choice.expected import FEW_REQUESTS, MANY_REQUESTS, explain_order, order_variants
from covey_planner.types import Wish
from kit.builders import lane
from kit.planning import node, variant, wish

GGUF = variant("gguf")
SAFETENSORS = variant("safetensors", format=ArtifactFormat.SAFETENSORS, engines=(EngineName.VLLM,))
MLX = variant("mlx", format=ArtifactFormat.MLX, engines=(EngineName.MLX,))
BOTH = node(
    lanes=(
        lane(digest="0" * 64),
        lane(engine=EngineName.VLLM, compute=Compute.CPU),
    )
)


def asked(expected: int, *, engines: tuple[EngineName, ...] = ()) -> Wish:
    return wish(variants=(GGUF, SAFETENSORS, MLX), expected_requests=expected, engines=engines)


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (FEW_REQUESTS, ["gguf", "mlx", "safetensors"]),
        (2, ["gguf", "safetensors", "mlx"]),
        (4, ["gguf", "safetensors", "mlx"]),
        (MANY_REQUESTS - 1, ["gguf", "safetensors", "mlx"]),
        (MANY_REQUESTS, ["safetensors", "gguf", "mlx"]),
        (64, ["safetensors", "gguf", "mlx"]),
    ],
)
def test_many_bring_vllm_to_the_front_and_one_sends_it_to_the_back(expected: int, names: list[str]) -> None:
    found = asked(expected)
    assert [each.name for each in order_variants(found)] == names
    assert bool(explain_order(found)) is (names != ["gguf", "safetensors", "mlx"])


@pytest.mark.parametrize(("expected", "engine"), [(4, EngineName.LLAMA_SERVER), (32, EngineName.VLLM)])
def test_a_node_with_both_engines_takes_the_one_for_so_many(expected: int, engine: EngineName) -> None:
    (chosen,) = choose(asked(expected), [BOTH], 1).chosen
    assert chosen.lane.engine is engine


def test_where_no_node_has_vllm_the_next_variant_is_taken() -> None:
    (chosen,) = choose(asked(32), [node()], 1).chosen
    assert chosen.variant == "gguf"


def test_engines_that_the_placement_names_are_taken_in_its_order() -> None:
    named = asked(32, engines=(EngineName.LLAMA_SERVER, EngineName.VLLM))
    (chosen,) = choose(named, [BOTH], 1).chosen
    assert chosen.lane.engine is EngineName.LLAMA_SERVER
    assert explain_order(named) == ""


def test_a_variant_keeps_the_order_of_its_engines() -> None:
    mixed = replace(SAFETENSORS, engines=(EngineName.MLX, EngineName.VLLM))
    found = replace(asked(32), variants=(GGUF, mixed))
    assert order_variants(found) == (GGUF, mixed)
