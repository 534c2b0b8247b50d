"""examples/kuberay.yaml: the policy covers the pods of the cluster, and lets in what submits the job."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "kuberay.yaml"


def test_policy_admits_the_cluster_and_its_submitter() -> None:
    yaml = pytest.importorskip("yaml")
    job, policy = yaml.safe_load_all(EXAMPLE.read_text())
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    (labels,) = {tuple(group["template"]["metadata"]["labels"].items()) for group in groups}
    assert policy["spec"]["podSelector"]["matchLabels"] == dict(labels)

    (rule,) = policy["spec"]["ingress"]
    admitted = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    assert dict(labels) in admitted
    assert {"job-name": job["metadata"]["name"]} in admitted  # Kubernetes' label of the pods of a Job
