"""`covey up`: the parts as separate processes under one small parent, so that each can die alone."""
