"""How agents and gateways reach the controller: join, renew, mutual TLS, bounded streams, private files."""
