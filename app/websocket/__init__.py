"""`/v1/responses` over WebSocket: lanes of turns on one connection."""
