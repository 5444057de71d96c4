"""A scrape, read by the client library's own OpenMetrics parser: what isn't valid raises."""

from collections.abc import Iterable, Mapping
from typing import cast

from prometheus_client.core import Metric

# The library's parser has no types.
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families,  # pyright: ignore[reportUnknownVariableType]
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def parse_metrics(text: str) -> dict[str, float]:
    """By `name{label="value"}`."""
    families = cast("Iterable[Metric]", text_string_to_metric_families(text))
    return {
        _spell(sample.name, cast("Mapping[str, str]", sample.labels)): sample.value
        for family in families
        for sample in family.samples
    }


def _spell(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name
