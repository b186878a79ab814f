"""Steps that all routes share: they wait for the engine, read stored responses, start turns, and send replies."""
