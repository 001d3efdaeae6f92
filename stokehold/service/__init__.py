"""Running the service on this machine: its places, its two processes, what it leaves and what the host lacks.

Nothing here is imported by the SDK, and nothing here imports the packages that it starts: they are processes."""
