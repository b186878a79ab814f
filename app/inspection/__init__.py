"""Records of turns: what the model read and wrote, step by step."""
