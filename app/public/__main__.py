"""`python -m antiphon` runs the command line."""

from antiphon.app.cli.commands import main

main()
