#!/usr/bin/env python3
"""A command whose standard error nobody reads any more ends on a signal.

unread.py EPA2A EXPERIMENT"""
import os
import re
import signal
import subprocess
import sys
import time

epa2a, experiment = sys.argv[1:3]
read_end, write_end = os.pipe()
os.set_blocking(write_end, False)
try:
    while True:
        os.write(write_end, b"x")
except BlockingIOError:
    os.set_blocking(write_end, True)
args = [epa2a, "bench", experiment, "--set", "bench.iterations=1000000"]
run = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=write_end)
end = time.monotonic() + 60
while time.monotonic() < end and run.poll() is None:
    text = subprocess.run([epa2a, "status", "--json", "-", str(run.pid)], capture_output=True, text=True).stdout
    if any(int(n) >= 1 for n in re.findall(r'"iteration":\s*(\d+)', text)):
        break
    time.sleep(0.05)
run.send_signal(signal.SIGTERM)
try:
    code = run.wait(60)
except subprocess.TimeoutExpired:
    run.kill()
    code = "none"
assert code == 143, f"exit code {code}"
