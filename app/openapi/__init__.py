"""The OpenAPI document of this server, built from its routes and from the tables that decode request bodies."""
