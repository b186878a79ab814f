"""The gRPC face of the server: the HTTP calls as gRPC methods, and a token-level engine service for routers.

Imported only if `--grpc` is given, since grpcio is an optional dependency. `antiphon.proto` describes the messages, and
`python -m antiphon.app.grpc` writes it from the structs of the HTTP bodies. No code is generated: `proto_parser` reads
the files at run time.
"""
