"""HTTP: routes, authentication, admission and problem replies. Must not know how a sandbox is made."""
