"""deploy/kubernetes as kustomize makes it, without kustomize."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.files import DEPLOY, loaded


def documents() -> Iterator[dict[str, Any]]:
    """Yield what the kustomization applies, labelled as it does."""
    kustomization = loaded("kubernetes", "kustomization.yaml")
    (labels,) = kustomization["labels"]
    assert labels["includeSelectors"]
    for file in kustomization["resources"]:
        for document in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text()):
            label(document, labels["pairs"])
            yield document


def label(document: dict[str, Any], pairs: dict[str, str]) -> None:
    """Add the labels where kustomize adds them."""
    document["metadata"].setdefault("labels", {}).update(pairs)
    spec, kind = document["spec"], document["kind"]
    if kind == "Deployment":
        spec.setdefault("selector", {}).setdefault("matchLabels", {}).update(pairs)
        spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(pairs)
    if kind == "Service":
        spec.setdefault("selector", {}).update(pairs)
