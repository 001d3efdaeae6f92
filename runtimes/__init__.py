"""How one sandbox is made, spoken to and ended, and what a call's program did. Must not know who holds it."""
