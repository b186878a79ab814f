"""Creates the models, the encoders and their engines from the options of the server."""
