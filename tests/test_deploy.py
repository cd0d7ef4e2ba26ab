"""What lies in deploy/: each file is checked by the tool that knows it, without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask
import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.cluster.settings import nested_settings
from pipeline.config.yaml import load_config

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
README = (DEPLOY / "README.md").read_text()
TOOLS = Path(sys.executable).parent
KUBERNETES = DEPLOY / "kubernetes"


def run(*words: str | Path, **options: Any) -> str:
    """Output of a tool that must succeed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    return [content for content in yaml.safe_load_all(path.read_text()) if content]


def manifests() -> list[Path]:
    found = [path for path in KUBERNETES.rglob("*.yaml") if "apiVersion" in path.read_text()]
    return sorted(path for path in found if path.name != "kustomization.yaml")


def test_every_yaml_file_is_well_formed() -> None:
    rules = "{line-length: {max: 100}, document-start: disable, braces: {max-spaces-inside: 1}}"
    run(TOOLS / "yamllint", "--strict", "-d", f"{{extends: default, rules: {rules}}}", DEPLOY)


def test_every_file_is_named_by_a_document() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".dockerignore":
            folder = path.parent.relative_to(DEPLOY)
            named = (path.name, f"{folder}/", f"deploy/{folder}")
            assert any(name in README for name in named), path


def test_dask_settings_are_those_of_the_package_and_known_to_dask() -> None:
    (content,) = documents(DEPLOY / "dask" / "distributed.yaml")
    assert content == nested_settings()
    known = yaml.safe_load(files("distributed").joinpath("distributed.yaml").read_text())

    def keys(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, value in tree.items():
            if isinstance(value, dict) and name != "pre-spawn-environ":
                yield from keys(value, (*path, name))
            else:
                yield (*path, name)

    assert set(keys(content)) <= set(keys(known)) | {
        ("distributed", "scheduler", "http", "routes"),
    }


def test_dask_reads_the_settings_from_the_documented_variable() -> None:
    show = "import dask; print(dask.config.get('distributed.worker.memory.spill'))"
    environment = {**os.environ, "DASK_CONFIG": str(DEPLOY / "dask")}
    assert run(sys.executable, "-c", show, env=environment).strip() == "False"
    assert "export DASK_CONFIG=deploy/dask\n" in README
    assert dask.config.get("distributed.worker.memory.spill") is not None


def test_the_dockerfile() -> None:
    run(TOOLS / "hadolint", DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.count("\nFROM ") == 2
    assert re.search(r"^USER 10001:10001$", text, flags=re.MULTILINE)
    sources = re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.MULTILINE)
    for name in " ".join(sources).split():
        assert (ROOT / name).exists(), name
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
        assert f"!{name}" in ignored, f"{name} does not enter the build"


def test_pinned_versions_satisfy_the_package() -> None:
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("formats", "kubernetes", "postgresql", "s3")
    wanted = [*project["dependencies"]]
    wanted += [text for extra in extras for text in project["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert pins[name] in requirement.specifier, requirement


def test_compose(tmp_path: Path) -> None:
    compose = DEPLOY / "compose.yaml"
    environment = {**os.environ, "LEDGER_PASSWORD": "x"}
    run(TOOLS / "docker-compose", "--file", compose, "config", "--quiet", env=environment)
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose)
    shown = run(
        *(TOOLS / "docker-compose", "--file", compose, "--profile", "job", "config"),
        *("--format", "json"),
        env=environment,
    )
    services = json.loads(shown)["services"]
    assert set(services) == {"scheduler", "worker", "release", "ledger"}
    assert services["worker"]["deploy"]["replicas"] == 2
    for name in ("scheduler", "worker", "release"):
        assert (services[name]["user"], services[name]["read_only"]) == ("10001:10001", True)
        assert ("PGPASSWORD" in services[name].get("environment", {})) == (name == "release")
    assert not any("ports" in service for service in services.values())
    # Without a password nothing starts.
    del environment["LEDGER_PASSWORD"]
    refused = subprocess.run(
        [TOOLS / "docker-compose", "--file", compose, "config", "--quiet"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert refused.returncode != 0


def test_compose_gives_a_worker_more_than_its_limit() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    limit = load_config(DEPLOY / "release.yaml").cluster.memory_limit
    assert int(compose["services"]["worker"]["mem_limit"].removesuffix("m")) * 2**20 > limit


@pytest.mark.parametrize("path", manifests(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kubernetes_manifests(path: Path) -> None:
    if path.parent.name == "daskjob":
        pytest.skip("checked against the operator's schema")
    run(TOOLS / "kubernetes-validate", "--strict", path)


def pods(content: Any) -> Iterator[dict[str, Any]]:
    """Every pod specification in a manifest."""
    if isinstance(content, dict):
        if "containers" in content:
            yield content
        for value in content.values():
            yield from pods(value)
    elif isinstance(content, list):
        for value in content:
            yield from pods(value)


def test_every_pod_is_confined_and_has_limits() -> None:
    found = [pod for path in manifests() for content in documents(path) for pod in pods(content)]
    assert len(found) == 8
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]["limits"]) == {"cpu", "memory"}


@pytest.mark.parametrize("kind", ["address", "operator"])
def test_a_cron_job_never_runs_twice_at_once_and_ends(kind: str) -> None:
    (content,) = documents(KUBERNETES / kind / "cronjob.yaml")
    job = content["spec"]["jobTemplate"]["spec"]
    assert content["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["backoffLimit"] <= 3
    assert job["activeDeadlineSeconds"] <= 86400
    (pod,) = pods(content)
    assert pod["containers"][0]["args"][0] == "release"


@pytest.mark.parametrize("kind", ["address", "operator"])
def test_kustomizations_name_what_is_there_and_render(kind: str, tmp_path: Path) -> None:
    for folder in (KUBERNETES / "base", KUBERNETES / kind):
        (content,) = documents(folder / "kustomization.yaml")
        named = [*content["resources"]]
        for generated in content.get("configMapGenerator", []):
            named += generated["files"]
        assert all((folder / name).exists() for name in named)
        assert {path.name for path in folder.iterdir()} == {
            "kustomization.yaml",
            *(name for name in named if not name.startswith("..")),
        }
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here to render them")
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(run("kubectl", "kustomize", KUBERNETES / kind))
    run(TOOLS / "kubernetes-validate", "--strict", rendered)
    configs = [it for it in documents(rendered) if it["kind"] == "ConfigMap"]
    assert configs[0]["data"]["release.yaml"] == (KUBERNETES / kind / "release.yaml").read_text()


def operator_schema(name: str) -> dict[str, Any]:
    """The operator's own schema of a resource, which refuses what it does not know."""
    folder = files("dask_kubernetes").joinpath("operator/deployment/helm")
    path = folder.joinpath(f"dask-kubernetes-operator/crds/{name}.yaml")
    version = yaml.safe_load(path.read_text())["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
    close(schema)
    return schema


def close(schema: Any) -> None:
    """Forbid unknown properties wherever properties are listed."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("x-kubernetes-preserve-unknown-fields") is None:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            close(value)
    elif isinstance(schema, list):
        for value in schema:
            close(value)


def test_the_dask_job_follows_the_operators_schema() -> None:
    configuration, job = documents(KUBERNETES / "daskjob" / "daskjob.yaml")
    jsonschema.validate(job, operator_schema("daskjob"))
    wrong = json.loads(json.dumps(job))
    wrong["spec"]["cluster"]["spec"]["worker"]["replicsa"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replicsa"):
        jsonschema.validate(wrong, operator_schema("daskjob"))
    assert configuration["metadata"]["name"] == job["metadata"]["name"]
    # One sed makes every name that of a run.
    command = next(line for line in README.splitlines() if line.startswith("sed "))
    made = run("bash", "-c", command.partition(" | ")[0] + " | cat", cwd=ROOT)
    renamed = made.split("\nkind: DaskJob")[1]
    assert "scoreshield-example" not in made.replace("# once: replace scoreshield-example", "")
    assert re.search(r"name: scoreshield-\d{4}-\d\d\n", renamed)


def test_the_cluster_that_a_run_asks_the_operator_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.cluster.kubernetes import cluster_resource

    section: Any = load_config(KUBERNETES / "operator" / "release.yaml").cluster
    monkeypatch.setenv("POD_NAME", "release-1")
    monkeypatch.setenv("POD_UID", "1-2-3")
    made = cluster_resource(section, "scoreshield-0123abcd")
    jsonschema.validate(made, operator_schema("daskcluster"))
    assert made["metadata"]["ownerReferences"][0]["name"] == "release-1"
    for pod in pods(made):
        (container,) = pod["containers"]
        assert "tls" in " ".join(container["args"])
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["spec"]["worker"]["replicas"] == 8


def configurations() -> list[Path]:
    return [DEPLOY / "release.yaml", DEPLOY / "slurm" / "release.yaml"] + [
        KUBERNETES / kind / "release.yaml" for kind in ("address", "operator")
    ]


@pytest.mark.parametrize("path", configurations(), ids=lambda path: path.parent.name)
def test_every_configuration_is_valid(path: Path) -> None:
    load_config(path)


def test_the_dask_jobs_configuration_is_valid(tmp_path: Path) -> None:
    configuration, _ = documents(KUBERNETES / "daskjob" / "daskjob.yaml")
    path = tmp_path / "release.yaml"
    path.write_text(configuration["data"]["release.yaml"])
    cluster: Any = load_config(path).cluster
    assert cluster.address == "tls://scoreshield-example-scheduler:8786"


def test_slurm_scripts(tmp_path: Path) -> None:
    from pipeline.cluster.slurm import job_options, jobqueue

    handler = signal.getsignal(signal.SIGINT)
    SLURMJob = jobqueue().slurm.SLURMJob
    assert signal.getsignal(signal.SIGINT) is handler

    script = DEPLOY / "slurm" / "release.sbatch"
    run("bash", "-n", script)
    line = (DEPLOY / "slurm" / "scrontab").read_text().splitlines()[-1]
    assert re.fullmatch(r"[\d*]+ [\d*]+ [\d*]+ [\d*]+ [\d*]+ sbatch deploy/slurm/\S+ \S+", line)
    section: Any = load_config(DEPLOY / "slurm" / "release.yaml").cluster
    (tmp_path / "scratch").mkdir()
    job = SLURMJob(
        "tls://submit:8786", name="worker", **job_options(section, tmp_path / "scratch")
    ).job_script()
    rendered = tmp_path / "job.sh"
    rendered.write_text(job)
    run("bash", "-n", rendered)
    for directive in ("-p batch", "--cpus-per-task=4", "--mem=16G", "-t 08:00:00", "--requeue"):
        assert f"#SBATCH {directive}\n" in job
    assert f"--memory-limit {16 * 2**30}" in job
    settings = re.search(r"export DASK_CONFIG=(\S+)\n", job)
    assert settings is not None
    assert documents(Path(settings[1]) / "distributed.yaml") == [nested_settings()]


def test_systemd_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here to check them")
    for path in (DEPLOY / "systemd").iterdir():
        # The command lies where the documents put it, which is not on this machine.
        text = path.read_text().replace("/opt/scoreshield/bin/scoreshield", "/bin/true")
        (tmp_path / path.name).write_text(text)
    units = sorted(tmp_path.iterdir())
    output = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units)
    assert "scoreshield" not in output, output


def fenced(heading: str) -> list[str]:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.search(r"^```sh\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def test_five_commands_lead_to_a_release_on_a_cluster_over_tls(tmp_path: Path) -> None:
    commands = fenced("A cluster of your own in five commands")
    assert len(commands) == 5
    assert commands[0] == "pip install -e ."
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    with socket.socket() as probe:
        # Another scheduler may listen at the documented port while tests run.
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "configs" / "address.yaml"
    config.write_text(config.read_text().replace(":8786", f":{port}"))
    environment = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    # One shell, as a reader's: it ends what it started in the background.
    script = "\n".join(["trap 'kill $(jobs -p); wait' EXIT", *commands[1:]])
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    assert "released: " in output
    run(TOOLS / "scoreshield", "verify", tmp_path / "releases" / "digits-address")
