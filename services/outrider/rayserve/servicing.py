"""What Serve's gRPC proxy is told of `outrider.v1.Generation`, under `grpc_servicer_functions`.

Serve pickles requests for its replicas, and a generated message can only be pickled where its proto package
is a Python package too. So the proxy gets methods that leave requests as the bytes that they are: the gateway
reads them, and can say what is wrong with them.
"""

from __future__ import annotations

import grpc
from google.protobuf.descriptor import MethodDescriptor

from outrider.wire.services import GENERATION
from outrider.wire.v1 import generation_pb2  # also what reflection describes

SERVICER = "outrider.rayserve.servicing.add_generation"
"""For `grpc_servicer_functions`."""


def add_generation(servicer: object, server: grpc.Server) -> None:
    """Register the service. Serve puts behaviours of its own in the place of the `servicer`'s."""
    methods = generation_pb2.DESCRIPTOR.services_by_name["Generation"].methods
    handlers = {method.name: _handler(method) for method in methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GENERATION, handlers),))


def _handler(method: MethodDescriptor) -> grpc.RpcMethodHandler[bytes, bytes]:
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_replaced, request_deserializer=bytes)
    return grpc.unary_unary_rpc_method_handler(_replaced, request_deserializer=bytes)


def _replaced(request: bytes, context: object) -> None:
    raise NotImplementedError("Serve answers calls by asking a replica")
