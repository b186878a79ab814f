"""`python -m antiphon` runs the command line."""

from antiphon.app.cli import main

main()
