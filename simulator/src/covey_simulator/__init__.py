"""The simulator: the product's own loops, many parts in one virtual-time loop, one seed deciding everything."""
