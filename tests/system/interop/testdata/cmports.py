"""Binds two rdma_cm IDs at each pair of places, and listens with both. A line for each pair."""

import ctypes
import errno
import socket
import struct
import sys

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
own4, own6, *places = sys.argv[1:]
addrs = {"4any": "0.0.0.0", "4own": own4, "6any": "::", "6own": own6}
options = {"reuse": 1, "afonly": 2}
channel = ctypes.c_void_p(cm.rdma_create_event_channel())
port = 20000


def name(rc):
    return "ok" if rc == 0 else errno.errorcode[ctypes.get_errno()]


def bind(place):
    place, _, option = place.partition(",")
    i = ctypes.c_void_p()
    assert cm.rdma_create_id(channel, ctypes.byref(i), None, 0x106) == 0
    if option:
        which, _, value = option.partition("=")
        v = ctypes.c_int(int(value))
        assert cm.rdma_set_option(i, 0, options[which], ctypes.byref(v), 4) == 0
    text = addrs[place]
    if place[0] == "4":
        sockaddr = struct.pack("=HHL8x", socket.AF_INET, socket.htons(port), 0)
        sockaddr = sockaddr[:4] + socket.inet_pton(socket.AF_INET, text) + sockaddr[8:]
    else:
        sockaddr = struct.pack("=HHL", socket.AF_INET6, socket.htons(port), 0)
        sockaddr += socket.inet_pton(socket.AF_INET6, text) + struct.pack("=L", 0)
    return i, name(cm.rdma_bind_addr(i, sockaddr))


for first in places:
    for second in places:
        port += 1
        a, result = bind(first)
        assert result == "ok", (first, result)
        b, result = bind(second)
        line = f"{first} {second}: bind {result}"
        if result == "ok":
            x = name(cm.rdma_listen(a, 1))
            line += f", listen {x} {name(cm.rdma_listen(b, 1))}"
        print(line)
        cm.rdma_destroy_id(a)
        cm.rdma_destroy_id(b)
