"""Clients of the HTTP services, with the standard library only::

    from vlmill.client import Client

    client = Client("http://127.0.0.1:8080")
    scores = client.score(["a.jpg", "b.jpg"], ["a red kite", "two dogs"])

Images are paths or the bytes of files. A request that the service is too busy for (429, 503) is
repeated after the time that it requests. Inputs beyond the limits of a request are sent in several
requests. :class:`AsyncClient` does the same in coroutines; ``calls`` are for :meth:`Client.send_all`.
"""

from vlmill.runtime.client import calls
from vlmill.runtime.client.sending import AsyncClient
from vlmill.runtime.client.sending import Client
from vlmill.runtime.client.calls import Call, RegionBatch, RejectedImage
from vlmill.runtime.client.connections import ServiceUnreachable
from vlmill.runtime.client.responses import ServiceError
from vlmill.runtime.client.connections import Retries

__all__ = [
    "AsyncClient",
    "Call",
    "Client",
    "RegionBatch",
    "RejectedImage",
    "Retries",
    "ServiceError",
    "ServiceUnreachable",
    "calls",
]
