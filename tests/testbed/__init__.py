"""What tests run on that is no part of Covey: a real Kubernetes control plane and its tools."""
