# SPDX-License-Identifier: Apache-2.0
"""What the tests of manifests for Kubernetes share."""

import copy

import yaml


def objects_of(file):
    """The objects of a file by `(kind, name)`."""
    documents = yaml.safe_load_all(file.read_text())
    return {(o["kind"], o["metadata"]["name"]): o for o in documents}


def check_schema(test, objects, version):
    """All objects have the schema of a version, and misspelled ones do not.

    Args:
      test: the TestCase.
      objects: dict, as of `objects_of`.
      version: string, of Kubernetes, or "latest".
    """
    # Not above: its import takes seconds, in each process of pytest.
    import kubernetes_validate

    if version == "latest":
        version = kubernetes_validate.latest_version()
    for one in objects.values():
        kubernetes_validate.validate(one, version, strict=True)
        other = copy.deepcopy(one)
        other["metadata"]["nmae"] = one["metadata"]["name"]
        with test.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(other, version, strict=True)
