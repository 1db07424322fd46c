"""Sends a command to server.py and ends with its exit code. Run with `python -IS`, which starts at once."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["NMT_DOCS_SERVER"])
    request = {"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}
    body = json.dumps(request).encode()
    socket.send_fds(connection, [len(body).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(body)
    answer = connection.recv(1)
    sys.exit(answer[0] if answer else "the command died")
