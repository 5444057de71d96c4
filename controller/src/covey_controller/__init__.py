"""The controller: observes desired objects and reports, plans, drives agents and gateways, and writes down why."""
