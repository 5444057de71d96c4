"""The fleet API (`/fleet/v1`): where agents and gateways join, report, and read what they should do."""
