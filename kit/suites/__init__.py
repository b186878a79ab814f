"""Cases for running servers, as data: one TOML file for each suite. `antiphon.kit.live` reads and runs them."""
