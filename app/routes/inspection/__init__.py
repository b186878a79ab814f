"""`/v1/inspect`: turns for those who look at them."""
