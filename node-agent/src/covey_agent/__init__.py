"""The node agent: observes its machine, fetches artifacts, runs members through keepers as the controller wishes."""
