"""Cases for running servers, as data: one TOML file for each suite. `antiphon.kit.conformance` reads and runs them."""
