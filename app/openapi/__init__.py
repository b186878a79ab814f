"""The OpenAPI document of this server, built from its routes and from the structs of request bodies."""
