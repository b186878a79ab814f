"""Images and files of turns: read and prepared before the prompt is rendered, and given to the engine when it asks."""
