"""The store in a PostgreSQL database, which servers on several machines share."""
