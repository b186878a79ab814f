"""From a body to a turn: strict decoding, the contract's error table, and every field honoured, echoed or refused."""
