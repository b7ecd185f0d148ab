"""Typical uses of TCP sockets. The server of each case runs in one process, the client in another.

    sockets.py server ADDRESS PORT
    sockets.py client ADDRESS PORT OWN_ADDRESS [refused | silent PATIENCE [REFUSED_ADDRESS] | interrupted]

DATA_KIB in the environment is how much a client sends before it reads.
"""
import errno
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
DATA = bytes(range(256)) * 4 * int(os.environ.get("DATA_KIB", 1024))


def read_all(conn):
    got = b""
    while True:
        some = conn.recv(1 << 16)
        if not some:
            return got
        got += some


# Servers: each gets the connection, and closes it.

def echo(conn):
    conn.sendall(read_all(conn))


def serve_in_child(conn):
    """A child that runs another program has the connection as its input and output."""
    pid = os.fork()
    if pid == 0:
        os.dup2(conn.fileno(), 0)
        os.dup2(conn.fileno(), 1)
        os.execv("/bin/cat", ["cat"])
    conn.close()
    os.waitpid(pid, 0)


def serve_by_epoll(conn):
    conn.setblocking(False)
    poll, kept, end = select.epoll(), b"", False
    poll.register(conn.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
    while kept or not end:
        for _, events in poll.poll(10):
            if events & select.EPOLLIN and not end:
                some = conn.recv(1 << 14)
                kept, end = kept + some, not some
            if kept:
                try:
                    kept = kept[conn.send(kept):]
                except BlockingIOError:
                    pass
        poll.modify(conn.fileno(), (0 if end else select.EPOLLIN) | (select.EPOLLOUT if kept else 0))


def abort(conn):
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.recv(1)


def tell_names(conn):
    conn.sendall(repr((conn.getsockname()[:2], conn.getpeername()[:2])).encode())


# Clients: each gets a socket that is not connected.

def connect(s):
    s.connect((address, port))
    return s


def expect_echo(s):
    s.sendall(DATA)
    s.shutdown(socket.SHUT_WR)
    assert read_all(s) == DATA


def blocking(s):
    expect_echo(connect(s))


def without_waiting(s):
    """A socket that is registered with epoll before it connects."""
    s.setblocking(False)
    poll = select.epoll()
    poll.register(s.fileno(), select.EPOLLOUT)
    assert s.connect_ex((address, port)) in (0, errno.EINPROGRESS)
    assert poll.poll(10), "it does not become writable"
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    s.setblocking(True)
    expect_echo(s)


def begin(s, to):
    """Starts a nonblocking connection. Returns the duration of the call."""
    s.setblocking(False)
    before = time.monotonic()
    assert s.connect_ex(to) == errno.EINPROGRESS
    return time.monotonic() - before


def outcome(s):
    """Returns how the connection attempt ends, by poll and SO_ERROR."""
    poll = select.poll()
    poll.register(s.fileno(), select.POLLOUT)
    assert poll.poll(60000), "it does not become writable"
    return s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def silent(to, patience):
    """A host without an answer over RDMA does not block. The socket is writable only with an outcome."""
    with socket.socket(family) as s:
        took = begin(s, to)
        assert took < patience / 2, took
        assert not select.select([], [s], [], 0)[1], "it is writable before it is connected"
        assert s.connect_ex(to) == errno.EALREADY
        err = outcome(s)
        if err == 0:
            assert s.getpeername()[:2] == to and s.getsockname()[:2] != to
            s.setblocking(True)
            expect_echo(s)
        return err


def by_select(s):
    connect(s)
    s.setblocking(False)
    to_send, got, chooser = DATA, b"", selectors.SelectSelector()
    chooser.register(s, selectors.EVENT_READ | selectors.EVENT_WRITE)
    while len(got) < len(DATA):
        for _, events in chooser.select(10):
            if events & selectors.EVENT_WRITE and to_send:
                to_send = to_send[s.send(to_send[:1 << 16]):]
                if not to_send:
                    chooser.modify(s, selectors.EVENT_READ)
            if events & selectors.EVENT_READ:
                some = s.recv(1 << 16)
                assert some, "it ended early"
                got += some
    assert got == DATA
    s.shutdown(socket.SHUT_WR)
    s.setblocking(True)
    assert s.recv(1) == b""


def sendfile(s):
    with open("data", "wb+") as f:
        f.write(DATA)
        f.seek(0)
        connect(s)
        s.sendfile(f)
    s.shutdown(socket.SHUT_WR)
    assert read_all(s) == DATA


def in_child(s):
    connect(s)
    pid = os.fork()
    if pid == 0:
        expect_echo(s.dup())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def is_reset(s):
    connect(s).sendall(b"x")
    try:
        assert s.recv(1) == b"x", "the stream ended"
    except ConnectionResetError:
        return
    raise AssertionError("it was not reset")


def names(s):
    s.bind((sys.argv[4], 0))
    connect(s)
    mine, theirs = s.getsockname()[:2], s.getpeername()[:2]
    assert mine[0] == sys.argv[4] and theirs == (address, port), (mine, theirs)
    told = read_all(s).decode()
    assert told == repr((theirs, mine)), (told, mine, theirs)


CASES = [
    (echo, blocking), (serve_by_epoll, without_waiting), (serve_by_epoll, by_select), (serve_in_child, sendfile), (echo, in_child),
    (abort, is_reset), (tell_names, names),
]

if role == "server":
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(4)
        for serve, _ in CASES:
            conn, _ = listener.accept()
            with conn:
                serve(conn)
elif sys.argv[5:] == ["refused"]:
    with socket.socket(family) as s:
        s.bind((sys.argv[4], 0))
        assert s.connect_ex((address, port)) == errno.ECONNREFUSED
        assert s.getsockname()[0] == sys.argv[4], s.getsockname()
        assert s.connect_ex((address, port)) == errno.ECONNREFUSED
    with socket.socket(family) as s:
        s.bind((sys.argv[4], 0))
        begin(s, (address, port))
        assert outcome(s) == errno.ECONNREFUSED
        assert s.getsockname()[0] == sys.argv[4], s.getsockname()
    with socket.socket(family) as s: # the second connect reports it
        begin(s, (address, port))
        poll = select.poll()
        poll.register(s.fileno(), 0)
        assert poll.poll(60000)[0][1] & select.POLLERR
        assert s.connect_ex((address, port)) == errno.ECONNREFUSED
elif sys.argv[5:] == ["interrupted"]:
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with socket.socket(family) as s:
        try:
            s.connect((address, port))
            raise AssertionError("it is connected")
        except Interrupted:
            pass
        assert os.get_blocking(s.fileno())
        assert not select.select([], [s], [], 0)[1], "no connection is being made"
elif sys.argv[5:6] == ["silent"]:
    patience = float(sys.argv[6])
    err = silent((address, port), patience)
    if sys.argv[7:]:
        assert err == 0, err
        err = silent((sys.argv[7], port), patience)
        assert err == errno.ECONNREFUSED, err
    else:
        assert err in (errno.EHOSTUNREACH, errno.ETIMEDOUT), err
else:
    for _, run in CASES:
        with socket.socket(family) as s:
            s.settimeout(None)
            run(s)
            print(run.__name__, "is right")
