"""What a cluster says of a worker's error becomes the error itself."""

import pytest

from vlmill.runtime.units.launch.failures import format_refusal, useless_worker, worker_error
from vlmill.schemas.errors import InputError, StoreFailed

FLINK = """Pipeline BeamApp failed in state FAILED: java.util.concurrent.ExecutionException: \
java.lang.RuntimeException: Error received from SDK harness for instruction 7: Traceback (most \
recent call last):
  File "/venv/apache_beam/runners/worker/sdk_worker.py", line 312, in _execute
    response = task()
{error}

\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.handle(FnApiControlClient.java)
"""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/x' [while running 'Mine']",
            OSError,
            "[Errno 28] No space left on device: '/x' (on a worker, step Mine)",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file: 'a' [while running 'Mine-ptransform-56']",
            OSError,
            "[Errno 2] No such file: 'a' (on a worker, step Mine)",
        ),
        (
            "vlmill.schemas.errors.InputError: --warc x: nothing there",
            InputError,
            "--warc x: nothing there (on a worker)",
        ),
        (
            "vlmill.schemas.errors.StoreFailed: s3://b/x: the store has failed for 60 s "
            "[while running 'Mine-ptransform-56']",
            StoreFailed,
            "s3://b/x: the store has failed for 60 s (on a worker, step Mine)",
        ),
    ],
)
def test_an_error_that_one_line_answers(error: str, kind: type[Exception], said: str) -> None:
    told = worker_error(FLINK.format(error=error))
    assert type(told) is kind and str(told) == said


@pytest.mark.parametrize("module", ["vlmill.pipelines", "torch"])
def test_a_worker_without_a_module_is_told_how_to_get_it(module: str) -> None:
    text = FLINK.format(error=f"ModuleNotFoundError: No module named '{module}'")
    assert str(worker_error(text)).startswith(
        f"a worker cannot import {module}: install this version of vlmill"
    )


def test_a_module_that_a_worker_did_without_is_not_what_it_died_of() -> None:
    text = FLINK.format(
        error="ModuleNotFoundError: No module named 'x'\n\nDuring handling of the above exception, "
        "another exception occurred:\n\nOSError: gone"
    )
    assert useless_worker(text) is None
    assert str(worker_error(text)) == "gone (on a worker)"


def test_what_a_worker_refuses_with_comes_through() -> None:
    text = FLINK.format(error=format_refusal("on host: has vlmill 1"))
    assert str(worker_error(text)) == "on host: has vlmill 1"


def test_a_worker_that_was_killed_as_it_started_may_live_the_next_time() -> None:
    died = "java.lang.IllegalStateException: Process died with exit code "
    assert [code for code in (1, 99, 127, 128, 137, 143) if useless_worker(f"{died}{code}")] == [
        *(1, 99, 127)
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("java.io.IOException: error=2, No such file or directory", "No such file or directory"),
        ('java.io.IOException: Cannot run program "/x": error=13, Permission denied', "Permission"),
        ("java.lang.IllegalStateException: Process died with exit code 1", "Process died"),
    ],
)
def test_a_worker_that_does_not_start_is_told_so(text: str, why: str) -> None:
    error = worker_error(f"Pipeline BeamApp failed in state FAILED: {text}")
    assert error is not None and f"could not start a worker ({why}" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: 3",
        "OSError: gone\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "KeyError: 'x'",
    ],
)
def test_a_bug_stays_what_it_is(error: str) -> None:
    assert worker_error(FLINK.format(error=error)) is None
