# SPDX-License-Identifier: Apache-2.0
"""Reads the metrics of a process, as a scraper would."""

import urllib.error
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(port, path, host="127.0.0.1", accept=_OPENMETRICS):
    """(status, text) of a page."""
    request = urllib.request.Request(
        f"http://{host}:{port}{path}", headers={"Accept": accept}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(port):
    """Dict of (name, *values of labels in the order of their names) -> value.

    The parser checks that histograms are cumulative and that names are unique.
    """
    status, text = get(port, "/metrics")
    assert status == 200, text
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): (
            one.value
        )
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
