"""Further checks of a step: stored copies, replays, bodies in one piece, the same turn through chat."""
