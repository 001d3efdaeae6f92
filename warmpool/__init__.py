"""Which sandboxes exist and who holds them: pools, leases, the controller and the reaper. Must not know HTTP."""
