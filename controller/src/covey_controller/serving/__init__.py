"""What the fleet API and the control API share: the HTTP listener, bounded bodies, line streams, one error answer."""
