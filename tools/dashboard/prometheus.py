"""A real Prometheus as a process on this machine, what it can be asked, and promtool.

Owns where the programs come from: the search path, or Debian's package ``prometheus``, unpacked into a folder; nothing
is installed and no service is started. Prometheus listens on 127.0.0.1 alone, keeps what it reads in a temporary
folder, and ends with the context that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.dynamo.indexer import free_port
from tools.releasing.debian import fetch
from tools.releasing.targets import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Seconds after which something that has not come about will not.
PATIENCE: Final = 30.0
#: Seconds between two readings of a page, and of the alert rules.
SCRAPE_S: Final = 1


class UnavailableError(Exception):
    """Prometheus cannot be had here; the message says why."""


class PrometheusError(Exception):
    """Prometheus or promtool refuses something; the message says what."""


class Programs:
    """Where prometheus and promtool are."""

    def __init__(self, prometheus: Path, promtool: Path) -> None:
        self.prometheus, self._promtool = prometheus, promtool

    @classmethod
    def find(cls, folder: Path) -> Programs:
        """Those of the search path; else those in the folder, where Debian's package is unpacked the first time.

        Raises:
            UnavailableError: There is neither.
        """
        on_path = [shutil.which(name) for name in ("prometheus", "promtool")]
        if on_path[0] and on_path[1]:
            return cls(Path(on_path[0]), Path(on_path[1]))
        places = [folder / "usr" / "bin" / name for name in ("prometheus", "promtool")]
        if not all(place.is_file() for place in places):
            if folder.exists() and any(folder.iterdir()):
                raise UnavailableError(f"{folder} has other things than Debian's prometheus")
            try:
                fetch(["prometheus"], platform.machine(), folder)
            except (MissingError, OSError) as error:
                raise UnavailableError(f"no prometheus on the search path, and none from Debian: {error}") from error
        programs = cls(*places)
        done = subprocess.run([places[0], "--version"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"Debian's prometheus does not run here: {done.stderr.strip()[-200:]}")
        return programs

    def version(self) -> str:
        """Of prometheus."""
        done = subprocess.run([self.prometheus, "--version"], capture_output=True, text=True, check=True)
        # prometheus, version 2.42.0+ds (branch: ...
        return (done.stdout or done.stderr).split()[2]

    def promtool(self, *words: str | Path, given: str | None = None) -> str:
        """What promtool says.

        Raises:
            PrometheusError: It is not content.
        """
        done = subprocess.run([self._promtool, *words], input=given, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join(filter(None, (done.stdout.strip(), done.stderr.strip())))
            raise PrometheusError(f"promtool {' '.join(map(str, words))}:\n{said}")
        return done.stdout


class Prometheus:
    """A running one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str | float) -> Any:
        """What its HTTP API answers.

        Raises:
            PrometheusError: It refuses, or answers with a warning.
        """
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            raise PrometheusError(f"{path} {parameters}: {error.code} {said}") from error
        if told["status"] != "success" or told.get("warnings"):
            raise PrometheusError(f"{path} {parameters}: {told.get('error', told.get('warnings'))}")
        return told["data"]

    def check_readings(self) -> None:
        """Raises PrometheusError if it could not read the page or evaluate a rule."""
        for target in self.ask("targets", state="active")["activeTargets"]:
            if target["health"] != "up" or target["lastError"]:
                raise PrometheusError(f"the page is {target['health']}: {target['lastError']}")
        for group in self.ask("rules")["groups"]:
            for rule in group["rules"]:
                if rule["health"] != "ok":
                    raise PrometheusError(f"rule {rule['name']} is {rule['health']}: {rule.get('lastError')}")


@contextlib.contextmanager
def running(programs: Programs, target: str, rules: Sequence[Path]) -> Iterator[Prometheus]:
    """Starts one that reads a page and evaluates alert rules once a second, and ends it.

    Raises:
        PrometheusError: It does not start.
    """
    port = free_port()
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "kvpool", "static_configs": [{"targets": [target]}]}],
    }
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        # JSON is YAML.
        path = Path(folder) / "prometheus.yml"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [str(programs.prometheus), f"--config.file={path}", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=kept, cwd=folder)
        server = Prometheus(f"http://127.0.0.1:{port}")
        try:
            until = time.monotonic() + PATIENCE
            while True:
                with contextlib.suppress(OSError, PrometheusError):
                    server.ask("status/buildinfo")
                    break
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise PrometheusError(f"it does not start: {log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait()
