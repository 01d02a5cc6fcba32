"""Requests wait, are batched, and survive workers that die and stops that are asked for."""

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.serving import Reply, Served, served, until

from vlmill.client import Call, Client, Retries, ServiceError, calls
from vlmill.runtime.service.queue import BatchQueue, Item
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings, read_token
from vlmill.runtime.service.shell import Shell, guard_application, new_application
from vlmill.runtime.service.workers import Plan, Watcher, Worker, WorkerContext
from vlmill.schemas.errors import InputError

ECHO = ("-m", "tests.runtime.service.echo")


def echo(service: Served, *words: str) -> Reply:
    listed = ", ".join(f'"{word}"' for word in words)
    return service.post("/v1/echo", f'{{"do": [{listed}]}}'.encode(), "application/json")


@pytest.fixture
def many() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def items(count: int) -> list[Item]:
    return [Item(payload=number) for number in range(count)]


def test_a_queue_takes_all_of_a_request_or_nothing() -> None:
    queue = BatchQueue(3)
    assert queue.put(items(2)) and not queue.put(items(2)) and queue.put(items(1))
    assert len(queue) == 3


def test_what_was_given_up_leaves_the_queue() -> None:
    queue = BatchQueue(3)
    first = items(3)
    assert queue.put(first)
    first[0].future.cancel()
    assert queue.put(items(1))  # in its place
    first[1].future.cancel()
    batch = queue.take(8, 0.0, ahead=lambda: False, ended=lambda: False)
    assert [item.payload for item in batch] == [2, 0] and batch[0] is first[2]


def test_a_batch_waits_for_more_but_not_for_long() -> None:
    queue = BatchQueue(8)
    queue.put(items(1))

    def come_late() -> None:
        time.sleep(0.05)
        queue.put(items(1))

    late = Thread(target=come_late)
    late.start()
    assert len(queue.take(2, 10.0, ahead=lambda: False, ended=lambda: False)) == 2
    late.join()
    queue.put(items(1))
    assert len(queue.take(2, 0.01, ahead=lambda: False, ended=lambda: False)) == 1


def test_a_batch_holds_what_it_may_weigh() -> None:
    queue = BatchQueue(8)
    queue.put([Item(payload=weight, weight=weight) for weight in (3, 2, 4, 9, 1)])

    def taken() -> list[int]:
        batch = queue.take(6, 0.0, ahead=lambda: False, ended=lambda: False)
        return [item.payload for item in batch]

    assert [taken(), taken(), taken(), taken()] == [[3, 2], [4], [9], [1]]  # in their order
    assert queue.weight == 0


def test_a_batch_takes_no_longer_than_it_may() -> None:
    watcher = Watcher(batch_computed=lambda items, seconds: None, event=lambda name, fields: None)
    plan = Plan(name="a", module="", open=lambda: WorkerContext(compute=list))
    for limit, each, most in (
        (None, 9.0, 64),  # no limit
        (1.0, 0.0, 1),  # nothing is known yet
        (1.0, 0.1, 10),
        (1.0, 0.001, 64),
        (1.0, 7.0, 1),
    ):
        settings = ServiceSettings(batch=64, batch_seconds=limit)
        worker = Worker(plan, BatchQueue(8), settings, watcher)
        worker.pace.seconds_per_weight = each
        assert worker.max_weight == most


def test_who_computes_leaves_what_idle_ones_can_take() -> None:
    queue, taken = BatchQueue(8), dict[str, list[Item]]()

    def take(name: str) -> None:
        taken[name] = queue.take(1, 0.0, ahead=lambda: name == "busy", ended=lambda: False)

    threads = {name: Thread(target=take, args=(name,)) for name in ("busy", "idle")}
    for thread in threads.values():
        thread.start()
    time.sleep(0.1)
    queue.put(items(1))
    threads["idle"].join()
    assert taken.keys() == {"idle"}
    queue.put(items(1))
    threads["busy"].join()


def test_who_waits_for_a_batch_is_sent_away_at_the_end() -> None:
    queue, ended = BatchQueue(8), list[bool]()
    taken: Future[list[Item]] = Future()
    waiting = Thread(
        target=lambda: taken.set_result(
            queue.take(2, 0.0, ahead=lambda: False, ended=lambda: bool(ended))
        )
    )
    waiting.start()
    ended.append(True)
    queue.wake()
    assert taken.result(5) == []
    waiting.join()


def test_requests_are_batched_and_the_queue_is_bounded(many: ThreadPoolExecutor) -> None:
    with served([*ECHO, "batch=4", "batch_wait=0.05", "queue=8", "max_images=8"]) as service:
        blocked = many.submit(echo, service, "sleep 3")
        until(lambda: service.count("vlmill_queue_items") == 0)
        time.sleep(0.2)
        waiting = [many.submit(echo, service, f"echo {number}") for number in range(4)]
        until(lambda: sum(w.done() for w in waiting) + service.count("vlmill_queue_items") > 0)
        answers = [job.result().json()["answers"][0] for job in waiting]
        assert sorted(answer[2:] for answer in answers) == ["0", "1", "2", "3"]
        assert any(answer[0] != "1" for answer in answers)
        assert blocked.result().status == 200

        blocked = many.submit(echo, service, "sleep 2", "sleep 0", "sleep 0", "sleep 0")
        until(lambda: service.count("vlmill_queue_items") == 0)
        time.sleep(0.2)
        held = [many.submit(echo, service, *["sleep 0.01"] * 6) for _ in range(4)]
        replies = [job.result() for job in held]
        assert sorted({reply.status for reply in replies}) == [200, 429]
        full = next(reply for reply in replies if reply.status == 429)
        assert full.json()["reason"] == "busy" and int(full.headers["retry-after"]) >= 1
        assert blocked.result().status == 200


def test_a_stop_loses_no_request_that_was_accepted(many: ThreadPoolExecutor) -> None:
    with served([*ECHO, "queue=32"]) as service:
        accepted = [many.submit(echo, service, "sleep 0.2") for _ in range(10)]
        until(lambda: service.count("vlmill_queue_items") >= 8)
        assert service.stop() == 0
        assert [job.result().status for job in accepted] == [200] * 10
        with pytest.raises(ConnectionError):
            socket.create_connection(service.address)
        until(lambda: any('"event": "stopped"' in line for line in service.log))


def test_a_service_is_started_again_at_its_port(many: ThreadPoolExecutor) -> None:
    """Twice, under load: who asks again gets an answer, and what is logged as answered was."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", retries=Retries(tries=1))
    call = Call(path="/v1/echo", words={"do": ["sleep 0.02"]}, read=calls.read_json)
    stopped, answered, logged = Event(), list[int](), 0

    def ask() -> None:
        while not stopped.is_set():
            try:
                client.send(call)
                answered.append(1)
            except (OSError, ServiceError):  # nobody listens, or it is stopping
                stopped.wait(0.1)

    jobs = [many.submit(ask) for _ in range(8)]
    try:
        for generation in range(3):
            with served([*ECHO, f"port={port}"]) as service:
                enough = len(answered) + 20
                until(lambda enough=enough: len(answered) > enough)  # type: ignore[misc]
                if generation == 2:
                    stopped.set()
                assert service.stop() == 0
            lines = [json.loads(line) for line in service.log]
            assert {line["status"] for line in lines if line["event"] == "request"} == {"200"}
            logged += sum(line["event"] == "request" for line in lines)
    finally:
        stopped.set()
    assert all(job.result() is None for job in jobs)
    assert len(answered) == logged


def test_a_worker_that_dies_costs_its_batch_alone(many: ThreadPoolExecutor) -> None:
    with served([*ECHO, "workers=2", "queue=64"]) as service:
        doomed, healthy = service.workers()
        slow = [many.submit(echo, service, "sleep 1.5") for _ in range(2)]
        time.sleep(0.5)
        os.kill(doomed, signal.SIGKILL)
        assert sorted(job.result().status for job in slow) == [200, 503]
        lost = next(job.result() for job in slow if job.result().status == 503)
        assert lost.json()["reason"] == "worker_lost" and lost.headers["retry-after"] == "1"
        assert echo(service, "echo on").status == 200
        until(lambda: service.count("vlmill_workers_ready") == 2)
        assert service.count("vlmill_worker_restarts_total") == 1
        assert healthy in service.workers() and doomed not in service.workers()

        assert echo(service, "die").status == 503  # by its own request
        assert echo(service, "echo on").status == 200
        assert service.stop(signal.SIGINT) == 0
        assert all(not os.path.exists(f"/proc/{pid}") for pid in (healthy, doomed))


def test_a_worker_is_started_again_on_a_full_disk() -> None:
    """Where no line of the log can be written, of the worker's end neither."""
    with open("/dev/full", "wb") as full, served([*ECHO], stderr=full.fileno()) as service:
        for generation in range(1, 3):
            (doomed,) = service.workers()
            os.kill(doomed, signal.SIGKILL)
            until(lambda: service.count("vlmill_worker_restarts_total") == generation)  # noqa: B023
            until(lambda: service.count("vlmill_workers_ready") == 1)
            assert echo(service, "echo on").status == 200
        assert service.count("vlmill_log_lines_dropped") > 0
        assert service.ask("GET", "/healthz").status == 200
        assert service.stop() == 0


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    """Not even where it fills the pipe, and the queue of lines, many times."""
    reader, writer = os.pipe()
    try:
        with served([*ECHO], stderr=writer) as service:
            for _ in range(600):  # 64 KiB are 300 lines
                assert service.ask("GET", "/v1/nothing").status == 404
            assert service.ask("GET", "/healthz").status == 200
            (doomed,) = service.workers()
            os.kill(doomed, signal.SIGKILL)
            until(lambda: service.count("vlmill_worker_restarts_total") == 1)
            assert echo(service, "echo on").status == 200
            assert service.stop() == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_a_worker_that_was_well_is_started_again_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has computed nothing is started after longer and longer pauses."""
    pauses, told, queue = list[float](), Told(), BatchQueue(8)
    plan = Plan(name="a", module="vlmill.runtime.service.workers", open=opened)
    worker = Worker(plan, queue, ServiceSettings(), told.watcher)

    def note_pause(seconds: float | None = None) -> bool:
        pauses.append(seconds or 0.0)
        return len(pauses) > 6

    def serve_well_once(connection: Any) -> None:
        worker._has_computed = len(pauses) == 4

    monkeypatch.setattr(worker._stopped, "wait", note_pause)
    monkeypatch.setattr(worker._stopped, "is_set", lambda: len(pauses) > 6)
    monkeypatch.setattr(worker, "start", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(worker, "wait_until_ready", lambda connection: None)
    monkeypatch.setattr(worker, "_serve", serve_well_once)
    worker._keep(None)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 0.1, 0.2, 0.4]


class Told:
    """Takes what happens to workers, and lists it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.watcher = Watcher(batch_computed=lambda items, seconds: None, event=self.event)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Adds an event."""
        self.events.append((name, str(fields)))


def opened() -> WorkerContext:
    """Is called in a worker."""
    return WorkerContext(compute=list)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "worker_not_ready"),
        (EOFError(), "worker_not_ready"),
        (RuntimeError("can't start new thread"), "error"),
        (MemoryError(), "error"),
    ],
)
def test_a_worker_is_started_again_when_it_can_be(
    error: Exception, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often no pipe, no process or no thread can be had."""
    told, queue = Told(), BatchQueue(8)
    plan = Plan(name="a", module="vlmill.runtime.service.workers", open=opened)
    worker = Worker(plan, queue, ServiceSettings(), told.watcher)
    connection = worker.start()
    worker.wait_until_ready(connection)
    start, failures = worker.start, [error] * 3

    def fail_first() -> Any:
        if failures:
            raise failures.pop()
        return start()

    monkeypatch.setattr(worker, "start", fail_first)
    monkeypatch.setattr("vlmill.runtime.service.workers.FIRST_PAUSE", 0.001)
    worker.feed(connection)
    assert worker.is_fed and worker.process is not None
    os.kill(worker.process.pid or 0, signal.SIGKILL)
    until(lambda: worker.restarts == 1)
    assert [name for name, _ in told.events].count(event) == 3
    (item,) = items(1)
    queue.put([item])
    assert item.future.result(60) == 0
    worker.stop()
    assert not worker.is_fed


def test_a_batch_that_cannot_be_sent_or_read_is_refused() -> None:
    """And the process, which may have half of it, is started again."""
    told, queue = Told(), BatchQueue(8)
    plan = Plan(name="a", module="vlmill.runtime.service.workers", open=opened)
    worker = Worker(plan, queue, ServiceSettings(), told.watcher)
    connection = worker.start()
    worker.wait_until_ready(connection)
    worker.feed(connection)
    for number, payload in enumerate((lambda: 0, Unreadable())):
        item = Item(payload=payload)
        queue.put([item])
        refusal = item.future.exception(60)
        assert isinstance(refusal, RequestRefused) and refusal.reason == "worker_lost"
        until(lambda: worker.restarts == number + 1)  # noqa: B023
    worker.stop()


class Unreadable:
    """Is read in a worker, and not in the process that started it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return read_unless_in, (os.getpid(),)


def read_unless_in(process: int) -> Any:
    """Returns a new one, which is unreadable in ``process``."""
    if os.getpid() == process:
        raise ValueError("unreadable")
    unread = Unreadable()
    unread.__reduce__ = lambda: (read_unless_in, (process,))  # type: ignore[method-assign]
    return unread


def test_healthz_fails_where_a_worker_is_not_fed() -> None:
    shell = Shell(settings=ServiceSettings())
    application = new_application(shell, "a", "Nothing.", dict)
    client = TestClient(guard_application(shell, application), base_url="http://localhost")
    assert client.get("/healthz").status_code == 200
    fed: Any = SimpleNamespace(plan=SimpleNamespace(name="cuda:1"), is_fed=True)
    shell.workers.append(fed)
    assert client.get("/healthz").status_code == 200
    fed.is_fed = False
    answer = client.get("/healthz")
    assert answer.status_code == 503 and "cuda:1" in answer.json()["status"]
    shell.is_draining = True
    assert client.get("/healthz").status_code == 200


def test_connections_that_say_nothing_make_room() -> None:
    with served([*ECHO, "max_connections=8", "header_seconds=600"]) as service:
        idle = [socket.create_connection(service.address, timeout=120) for _ in range(30)]
        assert service.ask("GET", "/healthz").status == 200
        assert echo(service, "echo on").status == 200
        for connection in idle[:20]:  # the oldest ones
            assert connection.recv(1) == b""
        until(lambda: service.count("vlmill_connections") <= 9)
        assert service.count("vlmill_connections_closed_total") >= 23
        assert echo(service, "echo on").status == 200
        for connection in idle:
            connection.close()
        full = [line for line in service.log if '"connections_full"' in line]
        assert len(full) <= 2  # one a minute


def send_slowly(service: Served, body: bytes) -> socket.socket:
    """Sends a request, its body when the service has begun to read it; it has a connection then."""
    client = socket.create_connection(service.address, timeout=600)
    head = "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode())
    assert client.recv(1_000).startswith(b"HTTP/1.1 100")
    client.sendall(body)
    return client


def test_health_is_told_where_all_connections_have_requests() -> None:
    with served([*ECHO, "max_connections=2"]) as service:
        busy = [send_slowly(service, b'{"do": "sleep 3"}') for _ in range(2)]
        assert service.count("vlmill_connections") == 3  # with the one that asks
        refused = echo(service, "echo on")
        assert (refused.status, refused.json()["reason"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1" and refused.headers["connection"] == "close"
        assert service.ask("GET", "/healthz").status == 200
        assert service.count("vlmill_refusals_total") == 1
        for client in busy:
            assert client.recv(1_000).startswith(b"HTTP/1.1 200")
            client.close()
        until(lambda: echo(service, "echo on").status == 200)


def test_what_a_client_that_has_gone_has_asked_is_not_computed() -> None:
    with served([*ECHO]) as service:
        clients = [
            send_slowly(service, body) for body in (b'{"do": "sleep 600"}', b'{"do": "echo gone"}')
        ]
        clients[1].close()
        until(lambda: any('"status": "gone"' in line for line in service.log))
        clients[0].close()


def test_one_that_fails_costs_only_itself() -> None:
    with served([*ECHO, "batch=4"]) as service:
        reply = echo(service, "echo a", "raise", "echo b")
        assert reply.status == 500 and b"secret" not in reply.body
        assert service.count("vlmill_worker_restarts_total") == 0
        assert echo(service, "echo a").status == 200
        assert echo(service, "lose").json()["reason"] == "worker_lost"
        assert echo(service, "echo a").status == 200


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    from vlmill.runtime.service.server import open_listener

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: .*free port"):
            open_listener(ServiceSettings(port=port))
    with pytest.raises(InputError, match=r"--host no-such-host\.invalid"):
        open_listener(ServiceSettings(host="no-such-host.invalid"))


def test_settings_that_cannot_be_are_told() -> None:
    for wrong, said in (
        ({"queue": 0}, "--queue 0"),
        ({"max_images": 300}, "--queue 256: must be at least"),
        ({"max_connections": 0}, "--max-connections 0: expected at least 1"),
        ({"batch_wait": -0.001}, "--batch-wait -1: expected 0 or more"),
        ({"port": 65_536}, "--port"),
        ({"allow_urls": True}, "--contact"),
    ):
        with pytest.raises(InputError, match=said):
            ServiceSettings(**wrong)


def test_tokens_are_read_from_a_file_or_the_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path_factory.mktemp("token") / "token"
    assert read_token(None) is None
    monkeypatch.setenv("VLMILL_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"
    file.write_text("from-the-file\n")
    assert read_token(file) == "from-the-file"
    file.write_text("two words of a token")
    with pytest.raises(InputError, match="expected one word"):
        read_token(file)
    with pytest.raises(InputError, match="give a readable file"):
        read_token(file.parent)
    monkeypatch.setenv("VLMILL_TOKEN", "")
    with pytest.raises(InputError, match="VLMILL_TOKEN is empty; write a token to it, or remove"):
        read_token(None)
