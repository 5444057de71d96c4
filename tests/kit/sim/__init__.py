"""What seeds decide of a simulated fleet: its size, its faults, its people, and when it is as it should be."""
