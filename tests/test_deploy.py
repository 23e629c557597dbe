"""The files of ``examples/deploy`` are well formed, and ``docs/deployment.md`` shows them unchanged."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvpool.integrations.vllm import signatures
from kvpool.integrations.vllm.settings import Settings
from tests.documented import examples

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "deploy"
FILES = sorted(path for path in FOLDER.iterdir() if path.is_file())
PAGE = ROOT / "docs" / "deployment.md"
TIER = ROOT / "python/kvpool/integrations/vllm/offload/tier.py"
#: Settings of a secondary tier that vLLM itself reads.
OF_VLLM = {"type", "module_path"}


def unit() -> configparser.ConfigParser:
    class Repeated(dict[str, Any]):
        """A parser of configuration files that keeps every value of a key that occurs several times."""

        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self and isinstance(self[key], list):
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.ConfigParser(strict=False, dict_type=Repeated, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((FOLDER / "kvpool-vllm.service").read_text(encoding="utf-8"))
    return parser


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))


def container() -> dict[str, Any]:
    found: dict[str, Any] = manifests()[0]["spec"]["template"]["spec"]["containers"][0]
    return found


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the Dockerfile, each with its arguments."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_deployment_md_shows_the_file_as_it_is(path: Path) -> None:
    shown = [example.code for example in examples(PAGE) if example.by == "tests/test_deploy.py"]
    assert path.read_text(encoding="utf-8") in shown


def test_the_dockerfile_has_known_instructions_and_a_supported_vllm() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= {"FROM", "RUN", "VOLUME", "ENV", "EXPOSE", "ENTRYPOINT"}
    image = dict(steps)["FROM"]
    version = re.fullmatch(r"vllm/vllm-openai:v(\d+\.\d+)\.\d+", image)
    assert version is not None
    assert version[1] in signatures.VERSIONS
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["vllm", "serve"]
    variables = dict(part.split("=", 1) for name, part in steps if name == "ENV")
    assert Settings.from_environment(variables).level == "shadow"


def test_the_unit_starts_vllm_with_kvpool() -> None:
    service = unit()["Service"]
    variables = dict(line.split("=", 1) for line in service["Environment"].split("\n"))
    settings = Settings.from_environment(variables)
    assert (settings.level, settings.shadow_folder) == ("shadow", "/var/log/kvpool-vllm")
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute()
    assert arguments[0] == "serve"
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    # The environment variables of the unit file name folders that systemd creates.
    assert service["LogsDirectory"] == service["CacheDirectory"] == service["StateDirectory"] == "kvpool-vllm"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_knows_every_key_of_the_unit() -> None:
    command = ["systemd-analyze", "verify", str(FOLDER / "kvpool-vllm.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    faults = [line for line in done.stderr.splitlines() if "kvpool-vllm.service:" in line]
    # The program /opt/vllm is not installed here. That is no fault of the unit file.
    assert [line for line in faults if "is not executable" not in line] == []


def test_the_manifest_is_a_stateful_set_with_its_service() -> None:
    stateful_set, service = manifests()
    assert (stateful_set["apiVersion"], stateful_set["kind"]) == ("apps/v1", "StatefulSet")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    spec = stateful_set["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert spec["serviceName"] == service["metadata"]["name"]
    ports = {port["name"] for port in container()["ports"]}
    assert service["spec"]["ports"][0]["targetPort"] in ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"] == {"path": "/health", "port": "http"}
    pod = spec["template"]["spec"]
    claims = [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]]
    volumes = {volume["name"] for volume in pod["volumes"]} | set(claims)
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes


def test_the_container_of_the_manifest_has_settings_that_kvpool_takes() -> None:
    variables = {one["name"]: one["value"] for one in container()["env"]}
    assert Settings.from_environment(variables).level == "shadow"
    arguments = container()["args"]
    config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    (tier,) = config["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["module_path"].rpartition(".")[2] == TIER.stem
    tree = ast.parse(TIER.read_text(encoding="utf-8"))
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == tier["type"]]
    (start,) = [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    takes = {argument.arg for argument in [*start.args.args, *start.args.kwonlyargs]}
    assert set(tier) - OF_VLLM <= takes
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert tier["root_dir"] in mounts
    # The volume has room for the store and for the 4 GiB that the store leaves free.
    claim = manifests()[0]["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) * 2**30 >= tier["capacity_bytes"] + 4 * 2**30
