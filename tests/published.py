"""Publishes made-up histories with asv and the plugins, and serves what was published."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from math import nan
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AUTHOR = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
COLUMNS = ("result", "params", "version", "started_at")
HOUR = 3_600_000  # milliseconds


class History:
    """A repository of empty commits, and results of asv for them. Values are given by parameters,
    ``{("v0", "1024x1024x1024"): 1.5}``; None is a failure, what is left out was skipped."""

    def __init__(self, folder, messages):
        self.folder = folder
        self.results = folder / "results"
        self.benchmarks = {}
        self.git("init", "--quiet", "--initial-branch=main")
        for hour, message in enumerate(messages):
            date = f"2026-01-01T{hour:02}:00:00Z"
            dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
            self.git("commit", "--quiet", "--allow-empty", "-m", message, **dates)
        self.commits = self.git("log", "--reverse", "--format=%H").split()

    def define(self, name, *params, unit="unit", higher_is_better=False):
        """Add a benchmark; ``params`` are lists of text."""
        self.benchmarks[name] = {
            "name": name,
            "type": "track",
            "unit": unit,
            "version": "1",
            "higher_is_better": higher_is_better,
            "params": [[repr(value) for value in values] for values in params],
            "param_names": [f"parameter{i}" for i in range(len(params))],
        }

    def add(self, machine, commit, results, *, environment="env", started=0, version="1"):
        """Add a machine's results of the commit of that index: benchmark to values."""
        folder = self.results / machine
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine, "os": "Linux", "version": 1}
        (folder / "machine.json").write_text(json.dumps(facts))
        rows = {}
        for name, values in results.items():
            params = self.benchmarks[name]["params"]
            combinations = product(*([text.strip("'") for text in texts] for texts in params))
            row = [values.get(combination, nan) for combination in combinations]
            rows[name] = [row, params, version, started]
        document = {
            "commit_hash": self.commits[commit],
            "env_name": environment,
            "date": 1767225600000 + commit * HOUR,
            "params": {"machine": machine, "python": "3.12"},
            "python": "3.12",
            "requirements": {},
            "env_vars": {},
            "result_columns": COLUMNS,
            "results": rows,
            "durations": {},
            "version": 2,
        }
        path = folder / f"{self.commits[commit][:8]}-{environment}.json"
        path.write_text(json.dumps(document))

    def save(self):
        self.results.mkdir(exist_ok=True)
        text = json.dumps(self.benchmarks | {"version": 2})
        (self.results / "benchmarks.json").write_text(text)

    def publish(self):
        """Run ``asv publish`` as the project does; the folder of the site."""
        self.save()
        configuration = {
            "version": 1,
            "project": "made up",
            "repo": ".",
            "branches": ["HEAD"],
            "html_dir": "html",
            "plugins": [".asv_plugins"],
        }
        (self.folder / "asv.conf.json").write_text(json.dumps(configuration))
        asv = subprocess.run(
            [sys.executable, "-m", "asv", "publish"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        self.output = asv.stdout + asv.stderr
        assert asv.returncode == 0, self.output
        return self.folder / "html"

    def git(self, *arguments, **environment):
        git = subprocess.run(
            ["git", *AUTHOR, *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return git.stdout


@contextmanager
def served(folder):
    """A web server of the folder; its address."""
    with _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # a page asks for all its graphs at once; 5 can wait by default


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
