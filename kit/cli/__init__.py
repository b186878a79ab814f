"""Commands of the kit, which `antiphon.app.cli.commands` registers. Importing them imports nothing heavy."""
