"""``kubernetes``: a cluster that the Dask operator makes for one run.

The operator's own client speaks to schedulers without TLS, so the resource is made here, with a
scheduler and workers that accept nothing else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from pipeline.cluster.address import connected, security_of, wait_for_workers
from pipeline.cluster.settings import NO_PAGES, WORKER_ENVIRONMENT
from pipeline.config.cluster import KubernetesCluster
from pipeline.errors import ConfigurationError, RunFailed

_API = "kubernetes.dask.org/v1"
_PORT = 8786
_LABELS = {"scoreshield/cluster": "member"}
"""What the network policies of ``deploy/kubernetes`` let talk to one another."""
_USER = 10001
"""User of the image; the private folder belongs to it."""


@contextmanager
def open_kubernetes(cluster: KubernetesCluster, scratch: Path) -> Iterator[Client]:
    """Make the cluster, wait for its workers, yield a client, and remove the cluster."""
    security = security_of(cluster.tls)
    name = f"scoreshield-{secrets.token_hex(4)}"
    with (
        _resource(cluster_resource(cluster, name), cluster.namespace),
        connected(scheduler_address(cluster, name), security, cluster.wait) as client,
    ):
        wait_for_workers(client, cluster)
        yield client


def scheduler_address(cluster: KubernetesCluster, name: str) -> str:
    """Where the operator's service makes the scheduler reachable."""
    return f"tls://{name}-scheduler.{cluster.namespace}.svc:{_PORT}"


def cluster_resource(cluster: KubernetesCluster, name: str) -> dict[str, Any]:
    """The DaskCluster resource of one run."""
    memory, cores = str(int(cluster.memory_limit)), str(cluster.threads_per_worker)
    scheduler = ["scheduler", "--protocol", "tls", "--port", str(_PORT), *NO_PAGES]
    worker = ["worker", scheduler_address(cluster, name), "--name", "$(DASK_WORKER_NAME)"]
    worker += ["--nthreads", cores, "--memory-limit", memory, *NO_PAGES]
    return {
        "apiVersion": _API,
        "kind": "DaskCluster",
        "metadata": {"name": name, **_owner()},
        "spec": {
            "worker": {
                "replicas": cluster.workers,
                "metadata": {"labels": _LABELS},
                "spec": _pod(cluster, "worker", worker, {"memory": memory, "cpu": cores}),
            },
            "scheduler": {
                "metadata": {"labels": _LABELS},
                "spec": _pod(cluster, "scheduler", scheduler, {"memory": "2Gi", "cpu": "1"}),
                "service": {
                    "type": "ClusterIP",
                    "selector": {
                        "dask.org/cluster-name": name,
                        "dask.org/component": "scheduler",
                    },
                    "ports": [
                        {
                            "name": "tcp-comm",
                            "protocol": "TCP",
                            "port": _PORT,
                            "targetPort": "tcp-comm",
                        }
                    ],
                },
            },
        },
    }


def _pod(
    cluster: KubernetesCluster, role: str, command: list[str], resources: dict[str, str]
) -> dict[str, Any]:
    """A pod of one container that may do nothing but compute."""
    tls = cluster.tls
    files = ["--tls-ca-file", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key]
    container: dict[str, Any] = {
        "name": role,
        "image": cluster.image,
        "command": ["dask"],
        "args": [*command, *map(str, files)],
        "env": [{"name": name, "value": value} for name, value in WORKER_ENVIRONMENT.items()],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": str(cluster.mount)},
            {"name": "tls", "mountPath": str(tls.ca.parent), "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 (a volume of the pod's own)
        ],
    }
    if role == "scheduler":
        container["ports"] = [{"name": "tcp-comm", "containerPort": _PORT, "protocol": "TCP"}]
        container["readinessProbe"] = {"tcpSocket": {"port": "tcp-comm"}, "periodSeconds": 2}
    return {
        "containers": [container],
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": cluster.claim}},
            {"name": "tls", "secret": {"secretName": cluster.tls_secret, "defaultMode": 0o440}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }


def _owner() -> dict[str, Any]:
    """The pod that this runs in owns the cluster, so that none outlives its run."""
    name, uid = os.environ.get("POD_NAME"), os.environ.get("POD_UID")
    if not name or not uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {"ownerReferences": [owner]}


@contextmanager
def _resource(content: dict[str, Any], namespace: str) -> Iterator[None]:
    """A resource for as long as the context lasts."""
    kr8s = _client_library()
    kind = kr8s.objects.new_class(content["kind"], _API, asyncio=False)
    try:
        made = kind(content, namespace=namespace)
        made.create()
    except Exception as error:
        raise RunFailed(
            f"cluster: Kubernetes made no DaskCluster in namespace {namespace} "
            f"({type(error).__name__}: {' '.join(str(error).split())}); see whether this runs "
            "where the API answers, whether the Dask operator is installed, and whether the "
            "service account may make daskclusters. Nothing was spent by this attempt"
        ) from error
    try:
        yield
    finally:
        made.delete()


def _client_library() -> Any:
    try:
        # The operator's package ships the resource's schema, and this client.
        import dask_kubernetes  # noqa: F401
        import kr8s.objects
    except ImportError as error:
        raise ConfigurationError(
            "cluster.kind: kubernetes needs dask-kubernetes; pip install 'scoreshield[kubernetes]'."
            " Nothing was spent"
        ) from error
    return kr8s
