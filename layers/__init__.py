"""What a sandbox's disk is made of. Must not know what runs in it."""
