"""Steps that several routes share: they wait for engines and the store, start turns, read forms and send replies."""
