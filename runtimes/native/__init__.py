"""Containers made by our own spawner: the client of its socket protocol. The C lies in `src/`."""
