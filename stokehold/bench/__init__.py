"""Measuring a running service through its public API, beside floors measured in the same run."""
