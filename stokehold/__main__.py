"""`python -m stokehold` is the `stokehold` command."""

from stokehold.cli import main

main()
