# What most programs do with sockets. The frame is direct.py: servers get the connection, which it then closes, and clients a connected
# socket.
import array
import asyncio
import fcntl
import select
import signal
import subprocess
import termios
import threading
import time


def options(s):
    for level, option, value in [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33),
                                 (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0), (socket.IPPROTO_TCP, 18, 9000),
                                 (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)]:
        s.setsockopt(level, option, value)
        say(level, option, s.getsockopt(level, option))
    say(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0"))
    say(len(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)), errno_of(s.getsockopt, socket.IPPROTO_TCP, 250))
    for option in [socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ERROR, socket.SO_ACCEPTCONN]:
        say(option, s.getsockopt(socket.SOL_SOCKET, option))
    again = socket.socket(fileno=os.dup(s.fileno()))
    say(again.family, again.type, again.proto)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
    say(errno_of(s.recv, 1))
    say(errno_of(s.connect, (address, port)))
    say(s.getpeername() == again.getpeername() == (address, port) + s.getpeername()[2:], s.getsockname() == again.getsockname())
    again.close()


def ways(s):
    """Ways to read and write."""
    s.sendall(b"0123456789")
    say(s.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL), s.recv(10, socket.MSG_WAITALL))
    say(errno_of(s.recv, 1, socket.MSG_DONTWAIT))
    say(os.writev(s.fileno(), [b"ab", b"cd", b"e"]))
    time.sleep(0.2)
    n = array.array("i", [0])
    fcntl.ioctl(s.fileno(), termios.FIONREAD, n)
    first, second = bytearray(2), bytearray(3)
    say(n[0], os.readv(s.fileno(), [first, second]), first, second)
    say(s.sendmsg([b"x", b"yz"], [], socket.MSG_NOSIGNAL), s.recvmsg(3, 100)[:2], s.sendto(b"to", (address, port)), s.recvfrom(2))
    say(s.sendmsg([b"na", b"med"], [], 0, (address, port)), exactly(s, 5))
    say(errno_of(s.recvmsg, 1, 100, socket.MSG_ERRQUEUE))
    with os.fdopen(os.dup(s.fileno()), "rb+", 0) as raw, s.makefile("rwb") as f:
        f.write(b"line 1\nline 2\n")
        f.flush()
        say(f.readline(), f.readline(), raw.write(b"r"), raw.read(1))
    r, w = os.pipe()
    os.write(w, b"spliced")
    say(os.splice(r, s.fileno(), 7) if hasattr(os, "splice") else 7 == os.write(s.fileno(), os.read(r, 7)) and 7, exactly(s, 7))
    os.close(r)
    os.close(w)


def large(s):
    got = []
    reader = threading.Thread(target=lambda: got.append(read_all(s)))
    reader.start()
    s.sendall(LARGE)
    s.shutdown(socket.SHUT_WR)
    reader.join()
    say(got[0] == LARGE, s.recv(1), errno_of(s.send, b"x"))


def two_threads(s):
    """Two threads write, and two read, one socket."""
    piece, got = 1 << 20, [[], []]

    def read(into):
        while some := s.recv(1 << 15):
            into.append(some)

    threads = [threading.Thread(target=s.sendall, args=(c * piece,)) for c in (b"a", b"b")]
    threads += [threading.Thread(target=read, args=(into,)) for into in got]
    for t in threads:
        t.start()
    for t in threads[:2]:
        t.join()
    s.shutdown(socket.SHUT_WR)
    for t in threads[2:]:
        t.join()
    all = b"".join(got[0] + got[1])
    say(len(all), all.count(b"a"), all.count(b"b"))


def edges(s):
    """Edge- and level-triggered epoll."""
    s.setblocking(False)
    edge, level = select.epoll(), select.epoll()
    edge.register(s, select.EPOLLIN | select.EPOLLET)
    level.register(s, select.EPOLLIN)
    say(edge.poll(0), level.poll(0))
    s.send(b"12")
    say(edge.poll(10)[0][1], s.recv(1), edge.poll(0), level.poll(10)[0][1], s.recv(1), level.poll(0), errno_of(s.recv, 1))
    s.send(b"3")
    say(edge.poll(10)[0][1], level.poll(10)[0][1], s.recv(5))
    level.modify(s, select.EPOLLIN | select.EPOLLOUT)
    say(level.poll(10)[0][1])
    sent = 0
    try:
        while True:
            sent += s.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    got = 0
    while got < sent:
        select.select([s], [], [], 10)
        got += len(s.recv(1 << 20))
    say(got == sent, select.select([], [s], [], 10)[1] == [s])


def forked(s):
    """Two processes use one socket."""
    pid = os.fork()
    if not pid:
        s.sendall(b"from the child")
        os._exit(len(exactly(s, 14)))
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    s.sendall(b"from the parent")
    say(exactly(s, 15))
    say(subprocess.run(["/bin/sh", "-c", "echo hello; head -c 6"], stdin=s, stdout=s).returncode, exactly(s, 6))
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"."], [s.fileno()])
    passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    passed.sendall(b"passed")
    say(exactly(s, 6), passed.getpeername() == s.getpeername())
    passed.close()


def half(conn):
    """It ends its sending half at once, and answers that with what it has read."""
    conn.shutdown(socket.SHUT_WR)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
    say(read_all(conn))


def half_closed(s):
    say(s.recv(1))
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLRDHUP)
    say(poll.poll(10000)[0][1])
    s.sendall(b"after the end")
    s.close()


def aborts(conn):
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    conn.sendall(b"rest")
    exactly(conn, 1)


def aborted(s):
    s.sendall(b"x")
    say(exactly(s, 4), errno_of(s.recv, 1), s.recv(1))


def leaves_unread(conn):
    conn.recv(1, socket.MSG_PEEK)


def unread(s):
    s.sendall(b"nobody reads it")
    say(errno_of(s.recv, 1))


def dies(conn):
    conn.sendall(b"last words")
    pid = os.fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def of_dead(s):
    say(read_all(s))
    time.sleep(0.2)
    for _ in range(10):
        got = errno_of(s.send, b"x")
        if got != 1:
            break
        time.sleep(0.05)
    say(got)


def by_asyncio(_):
    async def run():
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(LARGE[:1 << 20])
        assert await reader.readexactly(1 << 20) == LARGE[:1 << 20]
        say(writer.get_extra_info("peername") == (address, port) + writer.get_extra_info("peername")[2:])
        writer.close()
        await writer.wait_closed()
    asyncio.run(run())


def registered_before(_):
    """Sockets that are registered with epoll before they connect, with options."""
    for blocking in (True, False):
        with socket.socket(family) as s:
            poll = select.epoll()
            poll.register(s.fileno(), select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.setblocking(blocking)
            s.connect_ex((address, port))
            while not (events := poll.poll(10)[0][1]) & select.EPOLLOUT or events & select.EPOLLHUP and not blocking:
                pass
            say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            say(struct.unpack("ii", s.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)), os.get_blocking(s.fileno()), os.get_inheritable(s.fileno()))
            s.setblocking(True)
            s.sendall(b"1")
            say(exactly(s, 1), [e for _, e in poll.poll(10)] != [])


CASES = [(echo, options), (echo, ways), (echo, large), (echo, two_threads), (echo, edges), (echo, forked), (half, half_closed),
         (aborts, aborted), (leaves_unread, unread), (dies, of_dead), (echo, by_asyncio), (echo, registered_before)]
OWN = {by_asyncio: 1, registered_before: 2}  # clients that connect themselves, and how often
