"""As much of W&B's server as a run, ``wandb sync`` and the dashboard speak to."""

from __future__ import annotations

import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Keeps what is sent: ``runs`` by their id, ``views`` in the order of their creation."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.views: list[dict[str, Any]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"of": self}))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "0" * 40}

    def run(self, name: str) -> dict[str, Any]:
        empty: dict[str, Any] = {"told": {}, "history": [], "summary": "{}", "files": {}}
        return self.runs.setdefault(name, {**empty, "states": []})

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(name)["history"]]

    # What is asked, by the name of the query.

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
        found = re.match(r"\s*(?:query|mutation)\s+(\w+)", query)
        method = getattr(self, f"_{found.group(1)}" if found else "_", None)
        return method(given) if method else None

    def _RunResumeStatus(self, given: dict[str, Any]) -> dict[str, Any]:
        bucket = None
        if given["name"] in self.runs:
            run = self.run(given["name"])
            bucket = {
                "id": "cnVu",
                "name": given["name"],
                "summaryMetrics": run["summary"],
                "displayName": run["told"].get("displayName"),
                "historyLineCount": len(run["history"]),
                "historyTail": json.dumps(run["history"][-1:]),
                "eventsTail": "[]",
                "config": run["told"].get("config", "{}"),
                "wandbConfig": json.dumps({"t": 1}),
                **{"logLineCount": 0, "eventsLineCount": 0, "tags": []},
            }
        return {"model": {**_PROJECT, "bucket": bucket}}

    def _UpsertBucket(self, given: dict[str, Any]) -> dict[str, Any]:
        told = self.run(given["name"])["told"]
        told.update({key: value for key, value in given.items() if value})
        bucket = {"id": "cnVu", "name": given["name"], "displayName": told.get("displayName")}
        return {"upsertBucket": {"bucket": {**bucket, "project": _PROJECT}, "inserted": True}}

    def _CreateRunFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/put/{given['run']}/{name}"}
            for name in given["files"]
        ]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def _Viewer(self, given: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": []}
        return {"viewer": {"id": "bWU=", "entity": "me", "username": "me", "teams": teams}}

    _DefaultEntity = _ViewerDefaultEntity = _Viewer

    def _UpsertView2(self, given: dict[str, Any]) -> dict[str, Any]:
        self.views.append({**given, "spec": json.loads(given["spec"])})
        return {"upsertView": {"view": {"id": "dmlldw==", "name": given["name"]}, "inserted": True}}


_PROJECT = {"id": "cHJvamVjdA==", "name": "rdm_solo", "entity": {"id": "bWU=", "name": "me"}}


class _Handler(BaseHTTPRequestHandler):
    of: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._reply({})

    def do_PUT(self) -> None:
        _, _, run, name = self.path.split("/", 3)
        self.of.run(run)["files"][name] = self._body()
        self._reply({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            data = self.of.answer(asked["query"], asked.get("variables") or {})
            self._reply({"data": data} if data else {"data": None, "errors": [{"message": "?"}]})
            return
        if self.path.endswith("/file_stream"):
            run, sent = self.of.run(self.path.split("/")[-2]), json.loads(body)
            for name, part in (sent.get("files") or {}).items():
                if name == "wandb-history.jsonl":
                    run["history"][part["offset"] :] = part["content"]
                elif name == "wandb-summary.json":
                    run["summary"] = part["content"][-1]
            if sent.get("complete"):
                run["states"].append(sent.get("exitcode"))
        self._reply({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
