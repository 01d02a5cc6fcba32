"""A server on 127.0.0.1 with the requests of the Hugging Face hub for commits and downloads."""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """``commits`` are files by their names, by the commit's id; ``heads`` the last one of each
    repository. Requests without ``token``, where it is set, are refused.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.commits: dict[str, dict[str, bytes]] = {}
        self.heads: dict[str, str] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}  # what was sent by its SHA-256
        self.token: str | None = None
        self.check_digests = False  # whether it states the SHA-256 of files
        self.false_digests: dict[str, str] = {}
        self.pause_s = 0.0  # before each part of a file
        self.ranges: list[str] = []  # of files, as they were asked for
        self.sends_on = ""  # where requests for files are redirected to
        self.authorizations: list[str | None] = []  # of the requests for files
        self.asked: list[str] = []

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Makes these all the files of a repository."""
        told = json.dumps([repo, len(self.commits), sorted(files)])
        name = hashlib.sha1(told.encode()).hexdigest()
        self.commits[name], self.heads[repo] = files, name
        return name

    def head(self, repo: str) -> dict[str, bytes]:
        """Returns the files of a repository."""
        return self.commits[self.heads[repo]]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers a request."""
        path = unquote(urlsplit(handler.path).path)
        self.asked.append(f"{handler.command} {path}")
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        if path == "/api/validate-yaml":
            return send(handler, 200, {"errors": [], "warnings": []})
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return send(handler, 200, {})
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return send(handler, 401, {"error": "log in"})
        if path == "/api/repos/create":
            return self._create(handler, json.loads(body))
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._batch(handler, json.loads(body))
        pattern = r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|preupload|commit)/([^/]+))?"
        if found := re.fullmatch(pattern, path):
            repo, what, revision = found.groups()
            if repo not in self.heads or (revision or "main") not in ("main", *self.commits):
                return send(handler, 404, {"error": "not found"}, X_Error_Code="RepoNotFound")
            name = self.heads[repo] if revision in (None, "main") else revision
            getattr(self, f"_{what or 'revision'}")(handler, repo, name, body)
            return None
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(handler, *found.groups())
        return send(handler, 404, {"error": path})

    def _create(self, handler: BaseHTTPRequestHandler, asked: dict[str, object]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.heads:
            return send(handler, 409, {"error": "there", "url": f"{self.url}/{repo}"})
        self.private[repo] = asked.get("visibility") == "private"
        self.commit(repo, {})
        return send(handler, 200, {"url": f"{self.url}/{repo}"})

    def _revision(self, handler: BaseHTTPRequestHandler, repo: str, name: str, _: bytes) -> None:
        files = self.commits[name]
        siblings = [
            {"rfilename": n, "size": len(c), "blobId": digest(c)} | self._describe_lfs(n, c)
            for n, c in files.items()
        ]
        send(handler, 200, {"id": repo, "sha": name, "siblings": siblings})

    def _describe_lfs(self, name: str, content: bytes) -> dict[str, object]:
        if not self.check_digests:
            return {}
        sha256 = self.false_digests.get(name, hashlib.sha256(content).hexdigest())
        return {"lfs": {"size": len(content), "sha256": sha256, "pointerSize": 134}}

    def _tree(self, handler: BaseHTTPRequestHandler, repo: str, name: str, _: bytes) -> None:
        files = self.commits[name].items()
        rows = [{"type": "file", "path": n, "size": len(c), "oid": digest(c)} for n, c in files]
        send(handler, 200, rows)

    def _preupload(self, handler: BaseHTTPRequestHandler, _: str, name: str, body: bytes) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        send(handler, 200, {"files": modes})

    def _batch(
        self, handler: BaseHTTPRequestHandler, asked: dict[str, list[dict[str, str]]]
    ) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/large/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        send(handler, 200, {"transfer": "basic", "objects": objects})

    def _commit(self, handler: BaseHTTPRequestHandler, repo: str, _: str, body: bytes) -> None:
        files = dict(self.head(repo))
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        name = self.commit(repo, files)
        url = f"{self.url}/{repo}/commit/{name}"
        send(handler, 200, {"success": True, "commitOid": name, "commitUrl": url})

    def _file(self, handler: BaseHTTPRequestHandler, repo: str, name: str, path: str) -> None:
        commit = self.heads.get(repo, "") if name == "main" else name
        content = self.commits.get(commit, {}).get(path)
        if content is None:
            return send(handler, 404, {"error": path}, X_Error_Code="EntryNotFound")
        self.authorizations.append(handler.headers.get("Authorization"))
        if self.sends_on:
            return send(handler, 302, b"", Location=self.sends_on)
        about = {"ETag": f'"{digest(content)}"', "X_Repo_Commit": commit}
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if part is None or handler.command == "HEAD":
            return send(handler, 200, content, **about)
        self.ranges.append(part[0])
        time.sleep(self.pause_s)
        first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
        place = f"bytes {first}-{last}/{len(content)}"
        return send(handler, 206, content[first : last + 1], Content_Range=place, **about)


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def send(handler: BaseHTTPRequestHandler, status: int, content: object, **headers: str) -> None:
    """Sends bytes as they are, and all else as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Runs a hub until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(int(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
