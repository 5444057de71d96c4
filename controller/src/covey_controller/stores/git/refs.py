"""The refs of a clone, by their full names; what they mean is `clone`'s."""

REMOTE_REF, HEAD_REF, ASIDE_REFS = "refs/covey/remote", "refs/heads/covey", "refs/covey/aside/"
INCOMING_REF = "refs/covey/incoming"
