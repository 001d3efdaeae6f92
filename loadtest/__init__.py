"""Load against a running service, over HTTP only."""
