"""One process of a Flink cluster of several hosts, as containers have it.

    python docker/flink/flink_node.py jobmanager --job-manager jobmanager
    python docker/flink/flink_node.py taskmanager --job-manager jobmanager

Becomes the process of Flink: signals and the exit status are its own.
"""

import argparse
import json
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

from flink_cluster import (
    JOB_MANAGER,
    JOB_MEMORY,
    TASK_MANAGER,
    TASK_MEMORY,
    configuration,
    java_command,
    write_configuration,
)
from flink_jar import Missing, job_server_jar

HEALTH = Path(tempfile.gettempdir()) / "vlmill-flink-node.json"
"""Where docker/healthy.py reads which node this is."""
ROLES = {"jobmanager": (JOB_MANAGER, JOB_MEMORY), "taskmanager": (TASK_MANAGER, TASK_MEMORY)}


def main() -> int:
    """Writes the settings and becomes the process; returns only where that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument(
        "--job-manager", required=True, metavar="HOST", help="address of the job manager"
    )
    parser.add_argument(
        "--own", default=socket.gethostname(), metavar="HOST", help="this host's address"
    )
    parser.add_argument(
        "--bind",
        default="0.0.0.0",
        metavar="ADDRESS",
        help="address to listen on (default: %(default)s)",
    )
    parser.add_argument(
        "--rpc-port",
        type=int,
        default=6123,
        metavar="N",
        help="port of the job manager (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8081,
        metavar="N",
        help="port of the REST interface (default: %(default)s)",
    )
    parser.add_argument(
        "--task-port",
        type=int,
        default=6122,
        metavar="N",
        help="port of a task manager (default: %(default)s)",
    )
    parser.add_argument(
        "--jar", type=Path, metavar="FILE", help="job server (default: the one built by Maven)"
    )
    args = parser.parse_args()
    try:
        jar = args.jar or job_server_jar()
    except (Missing, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="flink-"))
    settings = configuration(
        folder,
        args.rpc_port,
        args.port,
        1,
        job_manager=args.job_manager,
        own=args.own,
        bind=args.bind,
    )
    # A new name at each start: the job manager forgets the one that has died.
    name = f"{args.own}-{secrets.token_hex(4)}"
    settings |= {"taskmanager.resource-id": name, "taskmanager.rpc.port": str(args.task_port)}
    write_configuration(folder, settings)
    node = {"role": args.role, "name": name, "own": args.own, "job_manager": args.job_manager}
    node |= {"port": args.port, "rpc_port": args.task_port}
    HEALTH.write_text(json.dumps(node), encoding="utf-8")
    main_class, memory = ROLES[args.role]
    command = java_command(jar, memory, main_class, ["--configDir", str(folder)])
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
