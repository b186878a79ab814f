"""The scripted engine: replays the replies of a TOML file, with pauses and faults. Needs no torch."""
