"""What a sandbox may do, and whether this host can enforce it."""
