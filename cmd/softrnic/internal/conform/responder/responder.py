#!/usr/bin/env python3
"""The responder of softrnic conform for any RDMA device: hardware, rxe, siw, or SoftRNIC's libibverbs.so.1.

It needs pyverbs (Debian's python3-pyverbs) and, on the machine of the device:

    SOFTRNIC_CONFORM_TOKEN=... ./responder.py DEVICE [HOST:PORT]

HOST:PORT is where the tester comes to, 127.0.0.1:18516 unless given. Without a token in the environment one is drawn, and printed
to standard error. It answers one tester at a time. The protocol is one JSON object a line, over TCP; what each asks for is
in the documentation of SoftRNIC's package control. The wire protocol, RoCEv2 or iWARP, is the device's.
"""
import base64
import ctypes
import enum
import fcntl
import hmac
import importlib
import ipaddress
import json
import mmap
import os
import secrets
import select
import socket
import struct
import sys
import time
import types

from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR


def constants(*modules):
    """Return the constants of the first module that exists. In newer versions of pyverbs they are members of its classes."""
    for name in modules:
        try:
            found = vars(importlib.import_module(name))
            break
        except ModuleNotFoundError:
            pass
    else:
        raise ModuleNotFoundError("pyverbs has none of " + ", ".join(modules))
    members = {n: int(v) for c in found.values() if isinstance(c, enum.EnumMeta) for n, v in c.__members__.items()}
    return types.SimpleNamespace(**{**found, **members})


e = constants("pyverbs.enums", "pyverbs.libibverbs_enums")

GUARD = b"\xa5" * 4096  # on either side of a region; nobody may change it
DEPTH = 256
MAX_MEMORY, MAX_QPS, MAX_LINE, MAX_WAIT = 1 << 20, 64, 2 << 20, 10

TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}
RIGHTS = {"remote_write": e.IBV_ACCESS_REMOTE_WRITE, "remote_read": e.IBV_ACCESS_REMOTE_READ, "remote_atomic": e.IBV_ACCESS_REMOTE_ATOMIC}
OPCODES = {
    "SEND": e.IBV_WR_SEND, "SEND_WITH_IMM": e.IBV_WR_SEND_WITH_IMM, "SEND_WITH_INV": e.IBV_WR_SEND_WITH_INV,
    "RDMA_WRITE": e.IBV_WR_RDMA_WRITE, "RDMA_WRITE_WITH_IMM": e.IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_READ": e.IBV_WR_RDMA_READ,
    "CMP_SWAP": e.IBV_WR_ATOMIC_CMP_AND_SWP, "FETCH_ADD": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}


STATUSES = {int(v): n[len("IBV_WC_"):] for n, v in vars(e).items() if n.startswith("IBV_WC_") and n.endswith(("_ERR", "_SUCCESS"))}
WC_OPCODES = {0: "SEND", 1: "RDMA_WRITE", 2: "RDMA_READ", 3: "COMP_SWAP", 4: "FETCH_ADD", 128: "RECV", 129: "RECV_RDMA_WITH_IMM"}
STATES = {0: "RESET", 1: "INIT", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "ERR"}


def gid_of(addr):
    """Return the GID of an IP address."""
    a = ipaddress.ip_address(addr)
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + a.packed) if a.version == 4 else a


def gids(context):
    """Return the RoCEv2 GIDs of port 1 by index."""
    found = {}
    for entry in context.query_gid_table(256):
        gid = ipaddress.IPv6Address(entry.gid_str())
        if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and entry.port_num == 1 and int(gid):
            found[entry.gid_index] = gid
    return found


def is_iwarp(context):
    """Report whether a device is an RNIC (iWARP) by its node type in sysfs."""
    with open("/sys/class/infiniband/%s/node_type" % name_of(context)) as f:
        return f.read().startswith("4")


def name_of(context):
    return context.name if isinstance(context.name, str) else context.name.decode()


def addresses(context):
    """Return the IP addresses of port 1; none if an RNIC's interface is not this machine's, as with SoftRNIC."""
    if not is_iwarp(context):
        return [gid.ipv4_mapped or gid for gid in gids(context).values()]
    interface = interface_of(context)
    if not interface:
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        found = [ipaddress.ip_address(fcntl.ioctl(s, SIOCGIFADDR, struct.pack("256s", interface.encode()))[20:24])]
    with open("/proc/net/if_inet6") as f:
        lines = [line.split() for line in f]
    return found + [ipaddress.ip_address(bytes.fromhex(line[0])) for line in lines if line[-1] == interface]


SIOCGIFADDR = 0x8915


def interface_of(context):
    """Return the interface of port 1 of an RNIC, whose GID begins with its MAC address; empty if none."""
    with open("/sys/class/infiniband/%s/ports/1/gids/0" % name_of(context)) as f:
        mac = bytes.fromhex(f.read().strip().replace(":", ""))[:6]
    for interface in os.listdir("/sys/class/net"):
        with open("/sys/class/net/%s/address" % interface) as f:
            if bytes.fromhex(f.read().strip().replace(":", "")) == mac:
                return interface
    return ""


class ConnParam(ctypes.Structure):
    """struct rdma_conn_param of librdmacm. That of pyverbs lacks private data."""
    _fields_ = [("data", ctypes.c_void_p), ("data_len", ctypes.c_uint8), ("responder_resources", ctypes.c_uint8), ("initiator_depth", ctypes.c_uint8),
                ("flow_control", ctypes.c_uint8), ("retry_count", ctypes.c_uint8), ("rnr_retry_count", ctypes.c_uint8), ("srq", ctypes.c_uint8),
                ("qp_num", ctypes.c_uint32)]


class Event(ctypes.Structure):
    """struct rdma_cm_event."""
    _fields_ = [("id", ctypes.c_void_p), ("listener", ctypes.c_void_p), ("type", ctypes.c_int), ("status", ctypes.c_int), ("param", ConnParam)]


cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.POINTER(ctypes.c_int)  # its file descriptor comes first
cm.rdma_event_str.restype = ctypes.c_char_p
ib = ctypes.CDLL("libibverbs.so.1")
ib.ibv_get_device_name.restype = ctypes.c_char_p
PORT_SPACE_TCP = 0x0106
RESOLVE_TIME = 5


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sockaddr(addr):
    """A struct sockaddr_in or sockaddr_in6 of host:port."""
    host, _, port = addr.rpartition(":")
    a = ipaddress.ip_address(host.strip("[]"))
    if a.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack(">H", int(port)) + a.packed + bytes(8)
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", int(port), 0) + a.packed + bytes(4)


class Connection:
    """The rdma_cm state of a pair."""

    def __init__(self, pair):
        self.pair, self.ids, self.current = pair, [], None
        self.channel = cm.rdma_create_event_channel()
        if not self.channel:
            raise OSError(ctypes.get_errno(), "rdma_create_event_channel")
        new = ctypes.c_void_p()
        check(cm.rdma_create_id(self.channel, ctypes.byref(new), None, PORT_SPACE_TCP))
        self.first = new
        self.ids.append(new)

    def close(self):
        for i in reversed(self.ids):
            cm.rdma_destroy_id(i)
        cm.rdma_destroy_event_channel(self.channel)

    def check_device(self, addr):
        """Refuse an address for which rdma_cm takes another device, as it may if two are on one interface."""
        first = ctypes.POINTER(ctypes.c_void_p)  # of struct rdma_cm_id its context, of struct ibv_context its device
        context = ctypes.cast(self.first, first)[0]
        taken = context and ib.ibv_get_device_name(ctypes.c_void_p(ctypes.cast(context, first)[0])).decode()
        own = name_of(self.pair.context)
        if taken and taken != own:
            raise OSError("rdma_cm takes %s for %s, not %s: take one of them off the interface (rdma link delete)" % (taken, addr, own))

    def listen(self, addr):
        check(cm.rdma_bind_addr(self.first, sockaddr(addr)))
        self.check_device(addr)
        check(cm.rdma_listen(self.first, 1))
        cm.rdma_get_src_port.restype = ctypes.c_uint16
        return socket.ntohs(cm.rdma_get_src_port(self.first))

    def dial(self, c):
        self.current = self.first
        check(cm.rdma_resolve_addr(self.first, None, sockaddr(c["addr"]), RESOLVE_TIME * 1000))
        self.expect("ADDR_RESOLVED")
        self.check_device(c["addr"])
        check(cm.rdma_resolve_route(self.first, RESOLVE_TIME * 1000))
        self.expect("ROUTE_RESOLVED")
        check(cm.rdma_connect(self.first, ctypes.byref(self.param(c))))

    def expect(self, want):
        event = self.event(2 * RESOLVE_TIME).get("event")
        if event != want:
            raise OSError("%s instead of %s" % (event, want))

    def private(self, c):
        data = base64.b64decode(c.get("private_data") or "")
        if len(data) > 255:
            raise ValueError("private data of %d bytes: rdma_cm takes 255" % len(data))
        return data

    def param(self, c):
        self.data = self.private(c)  # it has to stay
        return ConnParam(ctypes.cast(ctypes.c_char_p(self.data), ctypes.c_void_p), len(self.data), c["responder_resources"], c["initiator_depth"],
                         0, 7, 7, 0, self.pair.qp.qp_num)

    def event(self, wait):
        """Return the next event as a reply to the tester; empty if there is none."""
        if not select.select([self.channel[0]], [], [], wait)[0]:
            return {}
        event = ctypes.POINTER(Event)()
        check(cm.rdma_get_cm_event(self.channel, ctypes.byref(event)))
        got = event.contents
        name = cm.rdma_event_str(got.type).decode()[len("RDMA_CM_EVENT_"):]
        reply = {"event": name, "responder_resources": got.param.responder_resources, "initiator_depth": got.param.initiator_depth}
        if got.param.data:
            reply["data"] = base64.b64encode(ctypes.string_at(got.param.data, got.param.data_len)).decode()
        new, offered = ctypes.c_void_p(got.id), (got.param.responder_resources, got.param.initiator_depth)
        check(cm.rdma_ack_cm_event(event))
        if name == "CONNECT_REQUEST":
            self.ids.append(new)
            if self.current:
                check(cm.rdma_reject(new, None, 0))  # another one than the tester's
                return {}
            self.current = new
        elif name == "CONNECT_RESPONSE":
            self.move(*offered)
            check(cm.rdma_establish(self.current))
            reply["event"] = "ESTABLISHED"
        elif name == "ESTABLISHED":
            self.permit()
        return reply

    def accept(self, c):
        if not self.pair.iwarp:  # the kernel moves QPs over iWARP
            self.move(c["responder_resources"], c["initiator_depth"])
        check(cm.rdma_accept(self.current, ctypes.byref(self.param(c))))
        self.permit()

    def permit(self):
        """Set the rights of a QP that rdma_cm has moved. A fast peer may already have ended the connection."""
        if self.pair.iwarp:
            attr = QPAttr()
            attr.qp_access_flags = self.pair.rights
            try:
                self.pair.qp.modify(attr, e.IBV_QP_ACCESS_FLAGS)
            except PyverbsRDMAError:
                pass

    def reject(self, c):
        data = self.private(c)
        check(cm.rdma_reject(self.current, data, len(data)))

    def move(self, reads_in, reads_out):
        """Move the QP to RTR and RTS with the attributes of rdma_cm."""
        attr = self.attr(e.IBV_QPS_RTR)
        attr.max_dest_rd_atomic = reads_in
        self.pair.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN |
                            e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        attr = self.attr(e.IBV_QPS_RTS)
        attr.max_rd_atomic = reads_out
        self.pair.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY |
                            e.IBV_QP_MAX_QP_RD_ATOMIC)

    def attr(self, state):
        """Return the result of rdma_init_qp_attr. The offsets in struct ibv_qp_attr hold for 64-bit pointers."""
        raw, mask = ctypes.create_string_buffer(256), ctypes.c_int()
        struct.pack_into("=I", raw, 0, state)
        check(cm.rdma_init_qp_attr(self.current, raw, ctypes.byref(mask)))
        mtu, = struct.unpack_from("=I", raw, 8)
        attr = QPAttr(qp_state=state, path_mtu=mtu)
        attr.rq_psn, attr.sq_psn, attr.dest_qp_num = struct.unpack_from("=III", raw, 20)
        if state == e.IBV_QPS_RTR:
            flow, index, hops, traffic = struct.unpack_from("=IBBB", raw, 56 + 16)
            sl, = struct.unpack_from("=B", raw, 56 + 26)
            attr.ah_attr = AHAttr(is_global=1, port_num=1, sl=sl, gr=GlobalRoute(
                dgid=GID(raw[56:56 + 16].hex(":", 2)), sgid_index=index, flow_label=flow, hop_limit=hops, traffic_class=traffic))
        attr.min_rnr_timer, _, attr.timeout, attr.retry_cnt, attr.rnr_retry = struct.unpack_from("=BBBBB", raw, 128)
        return attr


class Pair:
    """A QP with its own CQ and region."""

    def __init__(self, context, pd, create):
        self.context, self.open, self.connection = context, [], None
        if create["memory"] < 0 or create["memory"] > MAX_MEMORY:
            raise ValueError("memory %d: 0 to %d" % (create["memory"], MAX_MEMORY))
        self.iwarp = is_iwarp(context)
        if create.get("transport", "rocev2") != ("iwarp" if self.iwarp else "rocev2"):
            raise ValueError("the device has %s only" % ("iWARP" if self.iwarp else "RoCEv2"))
        self.type = create["type"]
        if create.get("own_pd"):
            pd = self.keep(PD(context))
        self.length = create["memory"]
        self.memory = mmap.mmap(-1, self.length + 2 * len(GUARD))
        self.memory[:len(GUARD)] = self.memory[len(GUARD) + self.length:] = GUARD
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + len(GUARD)
        rights = e.IBV_ACCESS_LOCAL_WRITE | sum(RIGHTS[r] for r in create.get("mr_access") or [])
        self.mr = self.keep(MR(pd, self.length, rights, address=self.address))
        self.cq = self.keep(CQ(context, 2 * DEPTH))
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = self.keep(QP(pd, QPInitAttr(qp_type=TYPES[self.type], scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)))
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        mask = e.IBV_QP_STATE | e.IBV_QP_PORT | (0 if self.iwarp else e.IBV_QP_PKEY_INDEX)
        if self.type == "UD":
            attr.qkey, mask = create.get("qkey", 0), mask | e.IBV_QP_QKEY
        else:
            attr.qp_access_flags = self.rights = sum(RIGHTS[r] for r in create.get("qp_access") or [])
            mask |= e.IBV_QP_ACCESS_FLAGS
        self.qp.modify(attr, mask)

    def keep(self, obj):
        self.open.append(obj)
        return obj

    def close(self):
        if self.connection:
            self.connection.close()
        for obj in reversed(self.open):
            obj.close()

    def manage(self, op, r):
        """Handle a request for rdma_cm."""
        c = r.get("cm") or {}
        if op in ("listen", "dial"):
            if self.connection:
                raise ValueError("the QP listens or dials already")
            self.connection = Connection(self)
            if op == "listen":
                return {"port": self.connection.listen(c["addr"])}
            self.connection.dial(c)
        elif not self.connection:
            raise ValueError("the QP neither listens nor dials")
        elif op == "cm_event":
            return self.connection.event(min(r.get("wait_ms", 0) / 1000, MAX_WAIT))
        elif not self.connection.current:
            raise ValueError("no request has come")
        elif op == "accept":
            self.connection.accept(c)
        elif op == "reject":
            self.connection.reject(c)
        else:
            check(cm.rdma_disconnect(self.connection.current))
        return {}

    def connect(self, c):
        if self.iwarp:
            raise ValueError("a QP over iWARP is connected by listen or dial")
        if self.type == "UD":
            self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTR), e.IBV_QP_STATE)
            attr = QPAttr(qp_state=e.IBV_QPS_RTS)
            attr.sq_psn = c["sq_psn"]
            self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_SQ_PSN)
            return
        local = gid_of(c["local_addr"])
        index = [i for i, gid in gids(self.context).items() if gid == local]
        if not index:
            raise ValueError("local_addr %s: the port has no such address" % c["local_addr"])
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, path_mtu=MTUS[c["mtu"]])
        attr.dest_qp_num, attr.rq_psn = c["peer_qpn"], c["rq_psn"]
        attr.max_dest_rd_atomic, attr.min_rnr_timer = c["max_dest_rd_atomic"], c["min_rnr_timer"]
        attr.ah_attr = AHAttr(is_global=1, port_num=1, gr=GlobalRoute(
            dgid=GID(gid_of(c["peer_addr"]).packed.hex(":", 2)), sgid_index=index[0], hop_limit=64))
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        reliable = self.type == "RC"
        self.qp.modify(attr, mask | (e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER if reliable else 0))
        if c.get("only_recv"):
            return
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn, attr.timeout, attr.retry_cnt = c["sq_psn"], c["timeout"], c["retry_cnt"]
        attr.rnr_retry, attr.max_rd_atomic = c["rnr_retry"], c["max_rd_atomic"]
        mask = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN
        if reliable:
            mask |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        self.qp.modify(attr, mask)

    def place(self, offset, length):
        """Return the address of a part of the region."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError("offset %d, length %d: the region has %d bytes" % (offset, length, self.length))
        return len(GUARD) + offset

    def sges(self, r):
        self.place(r.get("offset", 0), r.get("length", 0))
        return {"num_sge": 1, "sg": [SGE(self.address + r.get("offset", 0), r.get("length", 0), self.mr.lkey)]}

    def post_recv(self, r):
        self.qp.post_recv(RecvWR(wr_id=r.get("wr_id", 0), **self.sges(r)))

    def post_send(self, r):
        s = r["send"]
        opcode = OPCODES[s["opcode"]]
        flags = e.IBV_SEND_SIGNALED
        flags |= e.IBV_SEND_SOLICITED if s.get("solicited") else 0
        flags |= e.IBV_SEND_FENCE if s.get("fence") else 0
        wr = SendWR(wr_id=r.get("wr_id", 0), opcode=opcode, send_flags=flags, **self.sges(r))
        if opcode == e.IBV_WR_SEND_WITH_INV:
            wr.imm_data = s.get("invalidate", 0)  # a union
        if opcode in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
            wr.imm_data = socket.htonl(s.get("imm", 0))
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(s.get("rkey", 0), s.get("remote_addr", 0), s.get("compare_add", 0), s.get("swap", 0))
        elif s["opcode"].startswith("RDMA_"):
            wr.set_wr_rdma(s.get("rkey", 0), s.get("remote_addr", 0))
        self.qp.post_send(wr)

    def poll(self, wait):
        end = time.monotonic() + min(wait, MAX_WAIT)
        while True:
            n, wcs = self.cq.poll(16)
            if n or time.monotonic() >= end:
                return [completion(wc) for wc in wcs or []]
            time.sleep(0.0002)

    def intact(self):
        return self.memory[:len(GUARD)] == GUARD and self.memory[len(GUARD) + self.length:] == GUARD


def completion(wc):
    found = {"wr_id": wc.wr_id, "status": STATUSES.get(int(wc.status), str(wc.status)), "opcode": "", "byte_len": 0}
    if int(wc.status) == 0:
        found["opcode"], found["byte_len"] = WC_OPCODES.get(int(wc.opcode), str(wc.opcode)), wc.byte_len
        found["src_qp"] = wc.src_qp
        data = wc.imm_data & 0xffffffff
        if wc.wc_flags & e.IBV_WC_WITH_IMM:
            found["imm"], found["with_imm"] = socket.ntohl(data), True
        if wc.wc_flags & e.IBV_WC_WITH_INV:
            found["invalidated"], found["with_inv"] = data, True
    return found


class Session:
    """The objects of one connection."""

    def __init__(self, context, token):
        self.context, self.token, self.pd, self.pairs, self.made = context, token, None, {}, 0

    def close(self):
        for pair in self.pairs.values():
            pair.close()
        if self.pd:
            self.pd.close()

    def do(self, r):
        op = r["op"]
        if op == "hello":
            if not hmac.compare_digest(r.get("token", "").encode(), self.token.encode()):
                raise PermissionError("the token is wrong")
            self.pd = self.pd or PD(self.context)
            return {"name": name_of(self.context), "addr": [str(a) for a in addresses(self.context)],
                    "rfc7306": is_iwarp(self.context) and int(self.context.query_device().atomic_caps) != 0}
        if not self.pd:
            raise PermissionError("say hello first, with the token")
        if op == "create_qp":
            if len(self.pairs) >= MAX_QPS:
                raise ValueError("there are %d QPs" % MAX_QPS)
            pair = Pair(self.context, self.pd, r["create"])
            self.made += 1
            self.pairs[self.made] = pair
            return {"qp": self.made, "qpn": pair.qp.qp_num, "remote_addr": pair.address, "rkey": pair.mr.rkey}
        pair = self.pairs[r.get("qp", 0)]
        if op == "connect":
            pair.connect(r["connect"])
        elif op in ("listen", "dial", "cm_event", "accept", "reject", "disconnect"):
            return pair.manage(op, r)
        elif op == "post_recv":
            pair.post_recv(r)
        elif op == "post_send":
            pair.post_send(r)
        elif op == "poll":
            return {"completions": pair.poll(r.get("wait_ms", 0) / 1000)}
        elif op == "read":
            at = pair.place(r.get("offset", 0), r.get("length", 0))
            return {"data": base64.b64encode(pair.memory[at:at + r.get("length", 0)]).decode()}
        elif op == "write":
            data = base64.b64decode(r.get("data", ""))
            at = pair.place(r.get("offset", 0), len(data))
            pair.memory[at:at + len(data)] = data
        elif op == "guard":
            return {"intact": pair.intact()}
        elif op == "state":
            state = int(pair.qp.query(e.IBV_QP_STATE)[0].qp_state)
            return {"state": STATES[state]} if state else {}  # no QP is in RESET here; siw of Linux 6.1 always says 0
        elif op == "destroy_qp":
            self.pairs.pop(r["qp"]).close()
        else:
            raise ValueError("op %r: unknown" % op)
        return {}


def serve(context, token, connection):
    session = Session(context, token)
    stream = connection.makefile("rwb")
    try:
        while True:
            line = stream.readline(MAX_LINE)
            if not line:
                return
            try:
                reply = session.do(json.loads(line))
            except Exception as error:  # the tester reads it
                reply = {"error": "%s: %s" % (type(error).__name__, error)}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()
            if not session.pd:
                return  # the token was wrong
    except OSError as error:
        print("the tester has gone: %s" % error, file=sys.stderr)
    finally:
        session.close()


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    host, _, port = (sys.argv[2] if len(sys.argv) == 3 else "127.0.0.1:18516").rpartition(":")
    token = os.environ.get("SOFTRNIC_CONFORM_TOKEN", "")
    if not token:
        token = secrets.token_hex(16)
        print("token %s" % token, file=sys.stderr)
    context = Context(name=sys.argv[1])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), int(port)), family=family) as listener:
        print("conform: %s on %s port %s" % (sys.argv[1], host, port), file=sys.stderr, flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                serve(context, token, connection)


if __name__ == "__main__":
    main()
