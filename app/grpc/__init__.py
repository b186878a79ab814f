"""The gRPC face of the server: vLLM's engine service, by which routers use it as a worker, and its health.

Imported only if `--grpc` is given, since grpcio is an optional dependency.
"""
