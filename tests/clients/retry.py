"""Asks for each URL once, as a client that knows nothing about this server: by urllib3's own retries.

No backoff of its own: whatever it waits, the server has said.
"""

import sys

import urllib3

retries = urllib3.Retry(total=5, backoff_factor=0)
with urllib3.PoolManager(retries=retries) as client:
    for url in sys.argv[1:]:
        print(client.request("GET", url).data.decode())
