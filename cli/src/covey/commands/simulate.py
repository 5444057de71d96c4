"""`covey simulate`: what would happen to a fleet when something breaks, played in virtual time."""

import click
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.text import escape_controls
from covey_simulator.outcome import render_data
from covey_simulator.report import render_report
from covey_simulator.run import run_scenario

from covey.commands.options import namespace_option
from covey.errors import ExitCode
from covey.staging import stage_scenario
from covey.tables import render_json


@click.command()
@click.argument("scenario")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@namespace_option
def simulate(scenario: str, output: str, namespace: str | None) -> None:
    """Play a scenario: what happens if node b dies?

    SCENARIO is a YAML file that names described Nodes (as for `covey plan --fleet`), Models and Placements, and says
    what happens when: `{atSeconds: 60, event: NodeDies, node: b}`. Covey's own controller, agents and gateways run on
    it in virtual time; no machine and no network is touched, but to read a model's header whose
    `spec.geometry` isn't given. The same scenario gives the same answer, to the byte.

    Exit code 0: it settled, every Placement is served in full, no rule of safety was broken. 1: not so.
    """
    outcome = run_scenario(stage_scenario(scenario, namespace or DEFAULT_NAMESPACE))
    rendered = render_json(render_data(outcome)) if output == "json" else render_report(outcome)
    click.echo(escape_controls(rendered).rstrip("\n"))
    if not outcome.holds:
        click.get_current_context().exit(ExitCode.FAILED)
