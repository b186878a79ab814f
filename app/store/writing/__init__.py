"""The thread that writes steps of responses to the database, and what it does between them."""
