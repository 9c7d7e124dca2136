"""Stores one job: producer.py unix:/run/awa-proxy/awa.sock ada@example.org"""
import sys

import awa

address, recipient = sys.argv[1:]
with awa.Client(address) as client:
    job_id = client.enqueue("mail", "email.send", {"to": recipient})
    print(f"stored job {job_id}")
