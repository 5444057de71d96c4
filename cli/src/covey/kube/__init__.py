"""A fleet in Kubernetes, reached as its user reaches the cluster: through kubectl."""
