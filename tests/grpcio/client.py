"""A gRPC client that this project did not write: grpcio, retrying by the service config that it is given.

Usage: client.py HOST:PORT SERVICE_CONFIG METHOD...

Calls one method after the other over one channel and prints a line for each: the status code, the message, and the
bytes of grpc-status-details-bin in hex, with tabs between them.
"""

import sys

import grpc

address, service_config, *methods = sys.argv[1:]
options = [
    ("grpc.service_config", service_config),
    # The server is here, whatever proxy this machine names.
    ("grpc.enable_http_proxy", 0),
]
with grpc.insecure_channel(address, options=options) as channel:
    for method in methods:
        # An empty message is no bytes: neither side needs generated code.
        call = channel.unary_unary(method, lambda message: message, lambda message: message)
        try:
            call(b"", timeout=60)
            print("OK", "", "", sep="\t")
        except grpc.RpcError as error:
            metadata = dict(error.trailing_metadata() or ())
            details = metadata.get("grpc-status-details-bin", b"")
            print(error.code().name, error.details(), details.hex(), sep="\t")
