"""Decisions in words: the same for `covey why`, conditions, the log and the simulation's trace. Stable, diffable."""

from covey_planner.text.refusals import render_refusals
from covey_planner.text.why import WhyPlacement, render_why, why_data

__all__ = ["WhyPlacement", "render_refusals", "render_why", "why_data"]
