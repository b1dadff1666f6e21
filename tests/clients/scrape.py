"""Reads a scrape as Prometheus' own client does, and prints its series by their families."""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1]) as answer:
    text = answer.read().decode()
for family in text_string_to_metric_families(text):
    assert family.documentation and family.samples, family
    for sample in family.samples:
        labels = (f"{name}={value}" for name, value in sorted(sample.labels.items()))
        print(family.type, sample.name, *labels)
