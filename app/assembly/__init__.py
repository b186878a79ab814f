"""Creates what the server is made of from its options: models, encoders and their engines."""
