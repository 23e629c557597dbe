#!/usr/bin/env python3
"""Checks the Grafana dashboard, the alert rules and the metrics page of ``kvpool.metrics`` with
Prometheus and promtool.

    python tools/dashboard_check.py

- ``promtool check rules`` and ``promtool test rules`` accept the alert rules. In the tests each alert
  fires in one case and stays silent in another.
- ``promtool check metrics`` accepts the metrics page.
- Prometheus reads the metrics page of a running load (``tools/dashboard/load.py``) once a second and
  evaluates the alert rules.
- Prometheus then answers every query of the dashboard without an error or a warning, and no panel is
  empty.

Prometheus and promtool come from the search path. Prometheus listens on 127.0.0.1, keeps its data in a
temporary folder, and ends with this program.

Exit code 0: every check passed, or Prometheus is unavailable and the last line states that nothing was
checked. With CI set in the environment the latter is exit code 1. 1: a check failed. 2: bad usage. 130:
Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tools.dashboard.load import load  # noqa: E402
from tools.dynamo.indexer import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

DASHBOARD: Final = ROOT / "docs" / "metrics" / "kvpool-dashboard.json"
RULES: Final = ROOT / "docs" / "metrics" / "kvpool.rules.yml"
RULES_TEST: Final = ROOT / "tools" / "dashboard" / "rules_test.yml"
#: Seconds that Prometheus has to start, and to answer a request.
PATIENCE: Final = 30.0
#: Seconds for which the load runs.
SECONDS: Final = 60
#: Values that replace Grafana's variables in queries. All pools and stores are chosen, and the interval
#: fits a page that is read once a second.
VARIABLES: Final = {
    "__rate_interval": "4s",
    "__interval": "1s",
    "__range": "60s",
    "pool": ".*",
    "store": ".*",
}


class PrometheusError(Exception):
    """Prometheus or promtool reported an error; the message contains its reason."""


def queries(panel: dict[str, Any]) -> list[str]:
    """Returns the PromQL queries of a panel, with values in place of Grafana's variables."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in VARIABLES:
            raise PrometheusError(
                f"panel {panel['title']!r} has the variable {found[0]!r}, not one of {set(VARIABLES)}"
            )
        return VARIABLES[found[1]]

    return [re.sub(r"\$\{?(\w+)\}?", value, target["expr"]) for target in panel.get("targets", ())]


def promtool(*words: str | Path, given: str | None = None) -> None:
    """Runs promtool, and returns its output.

    Raises:
        PrometheusError: promtool reports an error.
    """
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PrometheusError(f"promtool {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}".rstrip())


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Returns the answer of Prometheus's HTTP API.

        Raises:
            PrometheusError: The answer is an error or has a warning.
        """
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:500]
            raise PrometheusError(f"{path} {parameters}: {error.code} {reason}") from error
        if document["status"] != "success" or document.get("warnings"):
            raise PrometheusError(f"{path} {parameters}: {document.get('error', document.get('warnings'))}")
        return document["data"]

    def problems(self) -> Iterator[str]:
        """Yields a line for each failed read of the metrics page, each failed evaluation of a rule, and
        each panel that was always empty.
        """
        for target in self.ask("targets", state="active")["activeTargets"]:
            if target["health"] != "up" or target["lastError"]:
                yield f"the page is {target['health']}: {target['lastError']}"
        for group in self.ask("rules")["groups"]:
            for rule in group["rules"]:
                if rule["health"] != "ok":
                    yield f"rule {rule['name']} is {rule['health']}: {rule.get('lastError')}"
        end = time.time()
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
            values = [
                value
                for query in queries(panel)
                for series in self.ask("query_range", query=query, start=end - SECONDS, end=end, step=1)[
                    "result"
                ]
                for _, value in series["values"]
            ]
            if panel["type"] != "row" and not any(value != "NaN" for value in values):
                yield f"panel {panel['title']!r} is empty"


@contextlib.contextmanager
def running(target: str) -> Iterator[Prometheus]:
    """Starts Prometheus, which reads the metrics page at ``target``.

    Raises:
        PrometheusError: Prometheus does not start.
    """
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "kvpool", "static_configs": [{"targets": [target]}]}],
    }
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        # Write the configuration as JSON, because every JSON text is also valid YAML.
        path = Path(folder) / "prometheus.yml"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data"]
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


def check() -> list[str]:
    """Runs every check. Returns one line per problem."""
    from kvpool.metrics import Metrics

    promtool("check", "rules", RULES)
    promtool("test", "rules", RULES_TEST)
    metrics = Metrics()
    with (
        load(metrics) as failed,
        metrics.start_http(0) as page,
        running(f"127.0.0.1:{page.port}") as server,
    ):
        if failed.wait(SECONDS):
            return ["the load has failed, see above"]
        promtool("check", "metrics", given=metrics.render("prometheus"))
        return list(server.problems())


def main() -> int:
    if missing := [name for name in ("prometheus", "promtool") if shutil.which(name) is None]:
        print(
            f"dashboard_check: NOT CHECKED: {' and '.join(missing)} not on the search path", file=sys.stderr
        )
        return 1 if os.environ.get("CI") else 0
    try:
        problems = check()
    except PrometheusError as error:
        problems = [str(error)]
    for line in problems:
        print(f"dashboard_check: {line}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
