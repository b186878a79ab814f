"""What is known of turns besides their events: why they ended, when, and the record of what the model read."""
