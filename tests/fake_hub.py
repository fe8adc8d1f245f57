"""A stand-in for the Hugging Face hub, which no test can reach: the part of its HTTP API we use.

Every commit is a dict of files in memory. Large files go through git LFS, as on the hub; all
writing needs the token `TOKEN`.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_for_tests"
Files = dict[str, bytes]


@dataclass
class Repo:
    """A repository: its commits by their id, the last of which is `main`."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=lambda: {"0" * 40: {".gitattributes": b"*"}})

    def files(self, revision: str = "main") -> Files | None:
        return self.commits.get(self.head if revision == "main" else revision)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def commit(self, files: Files) -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        return oid


class FakeHub:
    """The repositories, and the server that shows them."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.damage = ""
        """The end of the path of a file whose content is cut off when it arrives."""
        self.silent = ""
        """A part of the paths to which no answer is ever sent."""
        self.closing = threading.Event()
        hub = self

        class Handler(_Handler):
            fake = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["FakeHub"]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self.server.shutdown()
            self.server.server_close()
            thread.join()

    def add(self, name: str, files: Files, private: bool = False) -> str:
        """A repository with these files."""
        repo = self.repos.setdefault(name, Repo(private))
        return repo.commit({".gitattributes": b"*", **files})


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin", ".npy", ".onnx"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent one after the other, without a wait
    fake: FakeHub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.fake.requests.append(f"{self.command} /{path}")
        if self.fake.silent and self.fake.silent in path:
            self.fake.closing.wait()
            self.close_connection = True
            return None
        parts = path.split("/")
        writes = self.command in ("POST", "PUT") or path == "api/whoami-v2"
        if writes and not self._authorized and parts[0] != "lfs":
            return self._error(401, "Invalid username or password.")
        if path == "api/whoami-v2":
            return self._json({"name": "alice", "type": "user", "orgs": []})
        if path == "api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path == "api/repos/create":
            return self._create(json.loads(self.body))
        if parts[0] == "lfs":
            return self._store(parts[1])
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(self.body))
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repo = self.fake.repos.get(name)
        if repo is None or (repo.private and not self._authorized):
            return self._error(404 if self._authorized else 401, "Not found", "RepoNotFound")
        if parts[0] == "api":
            return self._api(repo, name, parts[4:])
        return self._resolve(repo, parts[3], "/".join(parts[4:]))

    @property
    def _authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _create(self, settings: dict[str, Any]) -> None:
        name = f"{settings.get('organization') or 'alice'}/{settings['name']}"
        if not name.startswith("alice/"):
            return self._error(403, "You don't have the rights to create a model here")
        if name in self.fake.repos:
            return self._error(409, "You already created this model repo")
        self.fake.repos[name] = Repo(settings.get("visibility") == "private")
        return self._json({"url": f"{self.fake.url}/{name}", "name": name, "id": name})

    def _batch(self, request: dict[str, Any]) -> None:
        objects = []
        for item in request["objects"]:
            upload = {"href": f"{self.fake.url}/lfs/{item['oid']}", "header": {}}
            objects.append({**item, "authenticated": True, "actions": {"upload": upload}})
        return self._json({"transfer": "basic", "objects": objects})

    def _store(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.fake.blobs[oid] = self.body
        return self._json({})

    def _api(self, repo: Repo, name: str, rest: list[str]) -> None:
        what, revision = (*rest, "", "")[:2]
        if what == "preupload":
            asked = json.loads(self.body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if _is_large(file["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for file in asked
            ]
            return self._json({"files": modes})
        if what == "commit":
            oid = repo.commit(self._changed(dict(repo.files() or {})))
            url = f"{self.fake.url}/{name}/commit/{oid}"
            return self._json({"commitUrl": url, "commitOid": oid})
        files = repo.files(revision or "main")
        if files is None:
            return self._error(404, "Invalid rev id", "RevisionNotFound")
        if what == "tree":
            return self._json([_entry(path, content) for path, content in files.items()])
        sha = repo.head if revision in ("", "main") else revision
        siblings = [{"rfilename": path} for path in files]
        info = {"id": name, "sha": sha, "private": repo.private, "siblings": siblings}
        return self._json({**info, "_id": "1", "tags": [], "downloads": 0, "likes": 0})

    def _changed(self, files: Files) -> Files:
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "deletedFile":
                del files[value["path"]]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.fake.blobs[value["oid"]]
        for path in files:
            if self.fake.damage and path.endswith(self.fake.damage):
                files[path] = files[path][:-1]
        return files

    def _resolve(self, repo: Repo, revision: str, path: str) -> None:
        files = repo.files(revision)
        if files is None or path not in files:
            return self._error(404, "Entry not found", "EntryNotFound")
        content, oid = files[path], repo.head if revision == "main" else revision
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": oid}
        return self._send(200, content, headers)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, code: int, message: str, name: str = "") -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": name} if name else {})}
        self._send(code, json.dumps({"error": message}).encode(), headers)

    def _send(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    """A file in a listing; large ones with their checksum."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    entry["oid"] = _oid(content)
    if _is_large(path):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
    return entry
