"""The guarded HTTP client: many requests at once, none of them to an address inside."""

from types import TracebackType

from vlmill.schemas.net.exchange import Answer, ClientSettings, Request


class Client:
    """Runs up to ``settings.connections`` requests at once, over connections that are kept.

    Not for several threads. Redirects are answers: who asks decides whether their target is
    fetched, and when. Use it as a context manager::

        with Client(ClientSettings(contact="me@example.org")) as client:
            client.start(Request(url="https://example.org/a.jpg"))
            while client.num_running:
                for answer in client.wait(timeout=1.0):
                    ...
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_running(self) -> int:
        """How many requests have been started and not been answered by :meth:`wait`."""
        raise NotImplementedError

    @property
    def num_free(self) -> int:
        """How many more requests may be started now."""
        raise NotImplementedError

    def start(self, request: Request) -> None:
        """Starts a request; its answer comes from a later :meth:`wait`, a refused URL's too.

        Raises RuntimeError where ``num_free`` is 0.
        """
        raise NotImplementedError

    def wait(self, timeout: float) -> list[Answer]:
        """Returns the answers since the last call; waits up to ``timeout`` seconds for the first.

        An empty list when none came in time, or none is running.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends what is in flight, unanswered, and closes all connections."""
        raise NotImplementedError
