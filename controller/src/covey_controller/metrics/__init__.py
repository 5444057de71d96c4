"""What the controller tells Prometheus: figures, where they come from, and the port that they are read at."""
