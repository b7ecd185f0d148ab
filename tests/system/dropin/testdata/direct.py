"""What programs see of TCP sockets. It prints the same over TCP and with softrnic run --sockets-direct.
This file is the frame of direct_usual.py and direct_corners.py, each of which is run as one program with it:

    server ADDRESS PORT
    client ADDRESS PORT OWN_ADDRESS
"""
import errno
import os
import socket
import struct
import sys

role, address, port, own = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[-1]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
LARGE = os.urandom(1 << 20) * 8
ABORT = struct.pack("ii", 1, 0)


def say(*what):
    print(*what, flush=True)


def read_all(conn):
    got = b""
    while some := conn.recv(1 << 16):
        got += some
    return got


def exactly(conn, n):
    got = b""
    while len(got) < n:
        some = conn.recv(n - len(got))
        assert some, "it ended early"
        got += some
    return got


def errno_of(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]


def echo(conn):
    while some := conn.recv(1 << 16):
        conn.sendall(some)


def main():
    """Run CASES: servers with their clients, which connect themselves as often as in OWN."""
    if role == "server":
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(4)
            for serve, client in CASES:
                for _ in range(OWN.get(client, 1)):
                    conn, _ = listener.accept()
                    with conn:
                        serve(conn)
        return
    for _, run in CASES:
        say("#", run.__name__)
        if run in OWN:
            run(None)
            continue
        with socket.socket(family) as s:
            s.bind((own, 0))
            s.connect((address, port))
            run(s)
