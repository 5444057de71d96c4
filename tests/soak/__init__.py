"""Long runs of whole fleets with faults, and what they end with."""
