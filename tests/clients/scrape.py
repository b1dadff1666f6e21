"""Reads a scrape as Prometheus' own client does, and prints each family with its type and labels."""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1]) as answer:
    text = answer.read().decode()
for family in text_string_to_metric_families(text):
    labels = {name for sample in family.samples for name in sample.labels} - {"le"}
    assert family.documentation, family
    print(family.name, family.type, *sorted(labels))
