# What few programs do with sockets. The frame is direct.py: servers get the connection, which it then closes, and clients a connected
# socket.
import ctypes
import fcntl
import select
import signal
import tempfile
import termios
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
SIOCATMARK = 0x8905
SECONDS = struct.Struct("ll")


def c(name, *args):
    """Calls a function of the C library, and returns its result or the name of its error."""
    got = getattr(libc, name)(*args)
    return got if got >= 0 else errno.errorcode[ctypes.get_errno()]


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_len", ctypes.c_uint32), ("vectors", ctypes.POINTER(Vector)), ("n", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_len", ctypes.c_size_t), ("flags", ctypes.c_int)]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("len", ctypes.c_uint32)]


def messages(buffers, to=b""):
    """Returns the messages of sendmmsg and recvmmsg, with an address."""
    list = (Message * len(buffers))()
    for m, b in zip(list, buffers):
        m.header.name, m.header.name_len = ctypes.cast(ctypes.c_char_p(to), ctypes.c_void_p) if to else None, len(to)
        m.header.vectors, m.header.n = ctypes.pointer(Vector(ctypes.addressof(b), len(b))), 1
    return list


def readable(s, events=select.POLLIN | select.POLLPRI | select.POLLRDHUP | select.POLLOUT, wait=60000):
    """Returns what poll reports, without POLLOUT, when there is something of the events or the time is over."""
    poll = select.poll()
    poll.register(s, events & ~select.POLLOUT)
    got = poll.poll(wait)
    return got and got[0][1]


def many(s):
    """Several messages in one call, also with addresses, which TCP ignores."""
    buffers = [ctypes.create_string_buffer(b, len(b)) for b in (b"one", b"two", b"three")]
    to = struct.pack("=HH4s8x", family, socket.htons(port), socket.inet_aton("203.0.113.1"))
    for name in (b"", to, to[:4]):
        sent = messages(buffers, name)
        say(c("sendmmsg", s.fileno(), sent, 3, 0), [m.len for m in sent], exactly(s, 11))
    say(s.sendto(b"to", ("203.0.113.1", 9)), s.sendmsg([b"ms", b"g"], [], 0, ("203.0.113.1", 9)), exactly(s, 5))
    s.sendall(b"0123456789")
    buffers = [ctypes.create_string_buffer(n) for n in (4, 6)]
    got = messages(buffers)
    say(c("recvmmsg", s.fileno(), got, 2, socket.MSG_WAITALL, None), [m.len for m in got], [b.raw for b in buffers])
    say(c("recvmmsg", s.fileno(), got, 2, socket.MSG_DONTWAIT, None), c("recvmmsg", s.fileno(), got, 2, socket.MSG_ERRQUEUE, None))
    # An empty datagram, of another socket, is not the end of a connection.
    to, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for b in (b"1", b"", b"23"):
        to.send(b)
    got = messages([ctypes.create_string_buffer(4) for _ in range(3)])
    say(c("recvmmsg", own.fileno(), got, 3, 0, None), [m.len for m in got])


def aborts(conn):
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    exactly(conn, 1)


def many_aborted(s):
    s.sendall(b"x")
    readable(s)
    got = messages([ctypes.create_string_buffer(4)])
    say(c("recvmmsg", s.fileno(), got, 1, 0, None), c("recvmmsg", s.fileno(), got, 1, 0, None), got[0].len)


def error_of_aborted(s):
    s.sendall(b"x")
    readable(s)
    say([s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)], s.recv(1))


def urgent(conn):
    conn.recv(1)
    conn.send(b"ab")
    conn.send(b"!", socket.MSG_OOB)
    conn.send(b"cd")
    conn.recv(1)


def out_of_band(s):
    def at_mark():
        return struct.unpack("i", fcntl.ioctl(s.fileno(), SIOCATMARK, bytes(4)))[0]

    s.sendall(b"x")
    say(readable(s, select.POLLPRI), s.recv(1, socket.MSG_OOB), at_mark(), exactly(s, 2), at_mark(), exactly(s, 2))
    say(errno_of(s.recv, 1, socket.MSG_OOB))


def before(_):
    """Options from before the connection."""
    for blocking in (True, False):
        with socket.socket(family) as s:
            s.bind((own, 0))
            at = s.getsockname()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(0, 50000))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SECONDS.pack(7, 0))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12345)
            os.set_blocking(s.fileno(), blocking)
            s.connect_ex((address, port))
            select.select([], [s], [], 60)
            os.set_blocking(s.fileno(), True)
            say(errno_of(s.recv, 1), s.getsockname() == at, s.getpeername() == (address, port))
            say([SECONDS.unpack(s.getsockopt(socket.SOL_SOCKET, o, 16)) for o in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)],
                s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(60, 0))
            s.sendall(b"abc")
            say(s.recv(5))


def epolls(_):
    """Sockets that several instances of epoll watch before they connect."""
    for blocking in (True, False):
        with socket.socket(family) as s:
            kinds = [select.EPOLLIN, select.EPOLLIN | select.EPOLLET, select.EPOLLIN | select.EPOLLOUT]
            polls = [select.epoll() for _ in kinds]
            for poll, kind in zip(polls, kinds):
                poll.register(s, kind)
            os.set_blocking(s.fileno(), blocking)
            s.connect_ex((address, port))
            select.select([], [s], [], 60)
            os.set_blocking(s.fileno(), True)
            polls[1].poll(0)  # the edge of being connected
            s.sendall(b"1")
            readable(s)
            say([p.poll(20) == [(s.fileno(), e)] for p, e in zip(polls, [select.EPOLLIN, select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT])])
            say(s.recv(1), polls[0].poll(0), polls[1].poll(0), polls[2].poll(0) == [(s.fileno(), select.EPOLLOUT)])
            for poll in polls:
                poll.modify(s, select.EPOLLIN)
            s.sendall(b"2")
            say([p.poll(20) == [(s.fileno(), select.EPOLLIN)] for p in polls], s.recv(1))
            for poll in polls:
                poll.unregister(s)
            say([p.poll(0) for p in polls])
            for poll in polls:
                poll.close()


def duplicates(s):
    """Descriptors that are duplicated once the socket is connected."""
    second, third = os.dup(s.fileno()), fcntl.fcntl(s.fileno(), fcntl.F_DUPFD_CLOEXEC, 100)
    other = socket.socket(family)
    os.dup2(third, other.fileno())
    names = [socket.socket(fileno=fd) for fd in (second, third)] + [other]
    s.detach()
    say([n.getpeername() == (address, port) for n in names], names[1].fileno() >= 100)
    os.close(names.pop(0).detach())
    for n in names:
        n.sendall(b"by")
        say(exactly(n, 2), n.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    names[0].shutdown(socket.SHUT_WR)
    say(names[1].recv(1), errno_of(names[1].send, b"x"))
    for n in names:
        n.close()


def halves(conn):
    """It reports what it sees of a client that ends its sending half, and goes on sending."""
    seen = [readable(conn, select.POLLRDHUP), readable(conn), conn.recv(9), conn.recv(9), readable(conn, wait=0)]
    conn.sendall(repr(seen).encode())
    conn.shutdown(socket.SHUT_WR)


def half(s):
    s.sendall(b"first")
    s.shutdown(socket.SHUT_WR)
    say(readable(s, select.POLLIN) & ~select.POLLHUP, errno_of(s.send, b"x"), read_all(s))
    say(readable(s) & ~select.POLLHUP, s.recv(1))


def state(s):
    return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]


def states(conn):
    """The state of the connection in TCP_INFO. Programs look there whether their client has left."""
    seen = [state(conn)]
    conn.sendall(b"1")
    exactly(conn, 1)
    readable(conn, select.POLLRDHUP)
    conn.sendall(bytes(seen + [state(conn)]))
    while errno_of(conn.send, b".") == 1:  # until the client has looked, and closed it
        time.sleep(0.01)


def state_of(s):
    say(state(s), exactly(s, 1))
    s.sendall(b"1")
    s.shutdown(socket.SHUT_WR)
    while state(s) == 4:  # FIN_WAIT1
        pass
    say(state(s), list(exactly(s, 2)))


def pending(_):
    """A nonblocking socket whose connection has just begun, and has then been made."""
    with socket.socket(family) as s:
        os.set_blocking(s.fileno(), False)
        s.connect_ex((address, port))
        select.select([], [s], [], 60)
        say(state(s), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), errno_of(s.recv, 1))
        say([errno_of(s.connect, (address, port)) for _ in range(3)])


def files(s):
    """sendfile and splice, from and to files."""
    with tempfile.TemporaryFile() as f, tempfile.TemporaryFile() as g:
        f.write(b"from a file")
        f.flush()
        say(os.sendfile(s.fileno(), f.fileno(), 0, 20), s.sendfile(f, 5), exactly(s, 17))
        s.sendall(b"to a file")
        r, w = os.pipe()
        n = 0
        while n < 9:
            got = c("splice", s.fileno(), None, w, None, 9 - n, 0)
            c("splice", r, None, g.fileno(), None, got, 0)
            n += got
        say(os.pread(g.fileno(), 20, 0))
        os.close(r)
        os.close(w)


def late(conn):
    """It answers in two parts."""
    conn.recv(1)
    conn.sendall(b"01234")
    conn.recv(1)
    conn.sendall(b"56789")
    conn.recv(1)


def waits(s):
    """Reads that wait for all."""
    s.sendall(b"x")
    readable(s)
    threading.Timer(0.2, s.sendall, (b"x",)).start()
    say(s.recv(10, socket.MSG_WAITALL))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(0, 50000))
    say(errno_of(s.recv, 10, socket.MSG_WAITALL))


def again(s):
    """New data is a new edge, also if earlier data has not been read."""
    poll = select.epoll()
    poll.register(s, select.EPOLLIN | select.EPOLLET)
    oneshot = select.epoll()
    oneshot.register(s, select.EPOLLIN | select.EPOLLONESHOT)
    for n in (1, 2, 3):
        s.sendall(b"x")
        say(poll.poll(20) == [(s.fileno(), select.EPOLLIN)], poll.poll(0))
        while queued(s) < n:
            time.sleep(0.01)
    say(oneshot.poll(20) == [(s.fileno(), select.EPOLLIN)], oneshot.poll(0))
    oneshot.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    say(oneshot.poll(20) == [(s.fileno(), select.EPOLLIN)], queued(s), s.recv(9), queued(s))


def queued(s):
    return struct.unpack("i", fcntl.ioctl(s.fileno(), termios.FIONREAD, bytes(4)))[0]


def signalled(_):
    """SIGIO, set up before the socket is connected."""
    with socket.socket(family) as s:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
        fcntl.fcntl(s.fileno(), fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(s.fileno(), fcntl.F_SETSIG, signal.SIGRTMIN)
        fcntl.fcntl(s.fileno(), fcntl.F_SETFL, fcntl.fcntl(s.fileno(), fcntl.F_GETFL) | os.O_ASYNC)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
        s.connect((address, port))
        while signal.sigtimedwait([signal.SIGRTMIN], 0):
            pass
        s.sendall(b"1")
        info = signal.sigtimedwait([signal.SIGRTMIN], 60)
        say(info and info.si_signo - signal.SIGRTMIN, fcntl.fcntl(s.fileno(), fcntl.F_GETOWN) == os.getpid(), exactly(s, 1))
        fcntl.fcntl(s.fileno(), fcntl.F_SETFL, fcntl.fcntl(s.fileno(), fcntl.F_GETFL) & ~os.O_ASYNC)


def wrong(s):
    """Calls that are wrong for a connected socket, and options that only some sockets have."""
    say(errno_of(s.listen, 1), errno_of(s.bind, (own, 0)), errno_of(s.accept), errno_of(s.connect, (address, port)))
    say(struct.unpack("iii", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
    say(errno_of(s.getsockopt, socket.SOL_SOCKET, socket.SO_PEERSEC, 100))
    say(s.send(b""), s.recv(0), errno_of(s.send, b"x", 1 << 20), exactly(s, 1))


def is_handed_over(s):
    """Whether the socket is a Unix socket. Over TCP there is nothing to hand over."""
    with open("/proc/net/unix") as f:
        return "SOFTRNIC_SOCKETS" not in os.environ or str(os.fstat(s.fileno()).st_ino) in f.read().split()


ATTEMPTS = 5  # on a busy machine a program may take its end too late


def of_listener(conn):
    """What an accepted socket has of its listener, which waits for data: this does not keep a connection from being handed over."""
    with socket.socket(family) as l:
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        l.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(3, 0))
        l.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        l.bind((address, port + 10))
        l.listen()
        conn.sendall(b"1")
        for _ in range(ATTEMPTS):
            new, peer = l.accept()
            if handed_over := is_handed_over(new):
                break
            new.recv(1)
            new.close()
        with new:
            new.sendall(b"%d" % handed_over)
            seen = [new.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), new.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    SECONDS.unpack(new.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)), new.getsockname(), peer == new.getpeername()]
            conn.sendall(repr(seen).encode())
            echo(new)


def to_listener(s):
    exactly(s, 1)
    for _ in range(ATTEMPTS):
        new = socket.create_connection((address, port + 10))
        new.sendall(b"1")
        if got := new.recv(1):
            break
        new.close()
    with new:
        say(got, s.recv(1000).replace(b" %d)" % (port + 10), b" PORT)"), exactly(new, 1))
        large = bytes(1 << 20)
        reader = threading.Thread(target=exactly, args=(new, 4 * len(large)))
        reader.start()
        for _ in range(4):
            new.sendall(large)
        reader.join()


def two_listeners(conn):
    """SO_REUSEPORT: two listeners, in two processes, get some connections each."""
    listeners = []
    for _ in range(2):
        l = socket.socket(family)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        l.bind((address, port + 20))
        l.listen()
        listeners.append(l)
    conn.sendall(b"1")
    pid = os.fork()
    own = listeners[1 if pid else 0]
    listeners[0 if pid else 1].close()
    while readable_of(own, conn):
        new, _ = own.accept()
        with new:
            new.sendall(b"parent" if pid else b"child.")
    own.close()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def readable_of(listener, conn):
    """Whether the listener has a connection before conn ends."""
    return listener in select.select([listener, conn], [], [], 60)[0]


def to_two(s):
    exactly(s, 1)
    got = set()
    for _ in range(100):
        with socket.create_connection((address, port + 20)) as new:
            got.add(exactly(new, 6))
        if len(got) == 2:
            break
    say(sorted(got))
    s.shutdown(socket.SHUT_WR)


CASES = [(echo, many), (aborts, many_aborted), (aborts, error_of_aborted), (urgent, out_of_band), (echo, before), (echo, epolls), (echo, duplicates), (halves, half), (states, state_of),
         (echo, pending), (echo, files), (late, waits), (echo, again), (echo, signalled), (echo, wrong), (of_listener, to_listener),
         (two_listeners, to_two)]
OWN = {before: 2, epolls: 2, pending: 1, signalled: 1}
