"""Requests wait, are batched, and survive workers that die and stops that are asked for."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Thread

import pytest
from tests.serving import Reply, Served, served, until

from vlmill.runtime.service.client import ServiceClient, ServiceError
from vlmill.runtime.service.queue import BatchQueue, Item
from vlmill.runtime.service.settings import ServiceSettings, read_token
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
        blocked = many.submit(echo, service, "sleep 1")
        until(lambda: service.count("vlmill_queue_items") == 0 and not blocked.done())
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
    client = ServiceClient(f"http://127.0.0.1:{port}")
    stopped, answered, logged = Event(), list[int](), 0

    def ask() -> None:
        while not stopped.is_set():
            try:
                client.request_json("/v1/echo", (), {"do": ["sleep 0.02"]})
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
        statuses = sorted(job.result().status for job in slow)
        assert statuses == [200, 503]
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
        ({"max_images": 300}, "--queue 256: must hold"),
        ({"max_connections": 0}, "--max-connections 0: want at least 1"),
        ({"batch_wait": -0.001}, "--batch-wait -1: want 0 or more"),
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
    with pytest.raises(InputError, match="in one word"):
        read_token(file)
    with pytest.raises(InputError, match="give a readable file"):
        read_token(file.parent)
    monkeypatch.setenv("VLMILL_TOKEN", "")
    with pytest.raises(InputError, match="VLMILL_TOKEN is empty: put a token there, or leave"):
        read_token(None)
