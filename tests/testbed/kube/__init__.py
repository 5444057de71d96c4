"""A real Kubernetes control plane for tests: built once, up in two seconds, taken down whole."""
