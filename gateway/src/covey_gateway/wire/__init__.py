"""What bytes mean: heads, events, request and answer formats. Pure: bytes in, values out."""
