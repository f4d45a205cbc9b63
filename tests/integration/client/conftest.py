"""A real gateway over a scripted verifier, and both clients of it."""

import pytest

from tests.integration.client.faces import Blocking, ForAsyncio
from tests.integration.gateway.conftest import hold, make_verifier, model_folder, stack

__all__ = ["hold", "make_verifier", "model_folder", "stack"]


@pytest.fixture(params=[Blocking, ForAsyncio], ids=["blocking", "asyncio"])
def face(request):
    """Each client's class in turn."""
    return request.param


@pytest.fixture
async def client(face, stack):
    """Connected to the gateway."""
    client = face(stack.grpc)
    yield client
    await client.close()
