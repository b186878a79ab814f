"""Commands of the kit, which `antiphon.app.cli` registers. Importing them imports nothing heavy."""
