"""The jar of Beam's job server for Flink, built once by Maven: python docker/flink/flink_jar.py

It lies in the user's cache (``$XDG_CACHE_HOME/vlmill``, ``~/.cache/vlmill``) under the digest of
pom.xml, so that every checkout finds it.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
BUILT = HERE.parents[1] / "build" / "flink" / "flink-job-server.jar"
LEAST_JAVA = 17
BUILD_S = 600  # 196 MB; it took 70 to 170 s
JAVA_S = 60

# Maven checks only what the registry itself says of its files.
PINNED = {
    "beam-runners-flink-1.19/2.70.0/beam-runners-flink-1.19-2.70.0.jar": (
        "954701463e385dc32ab78449fffdfacaf5daa2f3cc442f1dcd739506cf759855"
    ),
    "beam-runners-java-job-service/2.65.0/beam-runners-java-job-service-2.65.0.jar": (
        "410bad54e9bec9d6583169c1d287b31812209a58767df142c1d399147c4315e4"
    ),
    "beam-sdks-java-expansion-service/2.70.0/beam-sdks-java-expansion-service-2.70.0.jar": (
        "ae000db9b1301d0bbfc78967f2dcc1b55e946fb5f5b763fb99556489b3273b22"
    ),
}
# What Maven says of a registry that does not answer. One that answers "not found" is another thing.
UNREACHABLE = re.compile(
    r"Unknown host|Temporary failure in name resolution|Connect(?:ion)? (?:to \S+ )?"
    r"(?:refused|timed out|reset)|Network is unreachable|No route to host|Read timed out"
    r"|connect timed out|Connection reset|status code: 50\d|Service Unavailable",
    re.IGNORECASE,
)


class Missing(Exception):
    """What this machine lacks for a Flink cluster; nothing is wrong with vlmill."""


def job_server_jar() -> Path:
    """Returns the jar, built if it has to be.

    Raises Missing without Java, Maven or its registry, and OSError for a build that fails.
    """
    require_java()
    jar = cache() / f"flink-job-server-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}.jar"
    if not jar.exists():
        if shutil.which("mvn") is None:
            raise Missing(f"no Maven (mvn) on the PATH, and no {jar}")
        build(jar)
    return jar


def cache() -> Path:
    """The folder of the jar."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vlmill"


def require_java() -> None:
    """Raises Missing if there is no Java that is new enough."""
    if shutil.which("java") is None:
        raise Missing("no Java (java) on the PATH")
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=JAVA_S)
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < LEAST_JAVA:
        said = answer.stderr.strip().splitlines() or ["it says nothing"]
        raise Missing(f"Java {LEAST_JAVA} or newer is needed ({said[0]})")


def build(jar: Path) -> None:
    """Builds the jar with a repository of its own, which goes again."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    repository = jar.parent / f"maven-{os.getpid()}"
    print(
        "Maven builds the jar of Flink's job server (196 MB, minutes)", file=sys.stderr, flush=True
    )
    command = ["mvn", "-B", "-C", "-f", str(POM), f"-Dmaven.repo.local={repository}", "package"]
    try:
        said, status = run_bounded(command, BUILD_S)
        require_built(said, status)
        require_pinned(repository)
        temporary = jar.with_name(f".tmp-{os.getpid()}-{jar.name}")
        shutil.copyfile(BUILT, temporary)
        os.replace(temporary, jar)
    finally:
        shutil.rmtree(repository, ignore_errors=True)
        shutil.rmtree(BUILT.parent, ignore_errors=True)


def run_bounded(command: list[str], seconds: float) -> tuple[str, int | None]:
    """What a command prints, and its exit status: None for one that time has ended."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        return (error.output or b"").decode("utf-8", "replace"), None
    return done.stdout.decode("utf-8", "replace"), done.returncode


def require_built(said: str, status: int | None) -> None:
    """Raises Missing if Maven could not reach its registry, OSError if it failed otherwise."""
    lines = said.strip().splitlines() or ["Maven said nothing"]
    if status is None:
        if "Download" not in lines[-1]:
            raise OSError(f"Maven was not done after {BUILD_S} s: {lines[-1]}")
        raise Missing(f"Maven's registry had not given all files after {BUILD_S} s: {lines[-1]}")
    if status:
        errors = [line for line in lines if line.startswith("[ERROR]")] or lines[-1:]
        if UNREACHABLE.search(" ".join(errors)):
            raise Missing(f"Maven cannot reach its registry: {errors[0][:300]}")
        raise OSError(f"Maven could not build {POM}: {errors[0][:300]}")


def require_pinned(repository: Path) -> None:
    """Raises OSError for a file of Beam that is not the one which was tested."""
    for name, digest in PINNED.items():
        path = repository / "org/apache/beam" / name
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if actual != digest:
            raise OSError(f"{path.name} has the SHA-256 {actual}, and should have {digest}")


def main() -> int:
    """Prints where the jar lies; returns the exit status."""
    try:
        print(job_server_jar())
    except (Missing, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
