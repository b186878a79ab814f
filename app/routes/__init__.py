"""One module per group of endpoints. A route reads, opens, and hands out a reading of the log; it decides nothing."""
