"""The driver with rdma_cm: a listener and connections. Their QPs are those of pyverbs, named by number
as in driver.py.
"""
import ctypes
import ipaddress
import signal
import struct

from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

import driver
from driver import e

ce = driver.constants("pyverbs.cm_enums", "pyverbs.librdmacm_enums")

IWARP = open("/sys/class/infiniband/%s/node_type" % driver.context.name).read().startswith("4:") # an RNIC
EVENT_TIMEOUT = 60 # seconds; the machine may be slow


class Endpoint:
    """An ID with its own channel, and its QP."""

    def __init__(self, cmid=None, channel=None):
        self.channel = channel or CMEventChannel()
        self.cmid = cmid or CMID(creator=self.channel)

    def await_event(self, wanted):
        signal.alarm(EVENT_TIMEOUT)
        event = CMEvent(self.channel)
        signal.alarm(0)
        if event.event_type != wanted:
            said = event.event_str()
            event.ack_cm_event()
            raise RuntimeError("%s, wanted event %d" % (said, wanted))
        return event

    def make_qp(self, send_wr, recv_wr, sge):
        self.cqs = [CQ(self.cmid.context, send_wr), CQ(self.cmid.context, recv_wr)]
        cap = QPCap(max_send_wr=send_wr, max_recv_wr=recv_wr, max_send_sge=sge, max_recv_sge=sge, max_inline_data=0)
        self.qp = QP(self.cmid.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cqs[0], rcq=self.cqs[1], cap=cap), QPAttr())

    def connect_qp(self):
        """Over iWARP the kernel takes the QP from INIT to RTS."""
        for state in (e.IBV_QPS_INIT,) if IWARP else (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            attr, mask = self.cmid.init_qp_attr(state)
            if mask & e.IBV_QP_ACCESS_FLAGS:
                attr.qp_access_flags |= e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
            self.qp.modify(attr, mask)

    def param(self, private_data, responder_resources, initiator_depth, retry, rnr_retry):
        private_data = bytes.fromhex(private_data)
        param = ConnParam(resources=responder_resources, depth=initiator_depth, retry=retry, rnr_retry=rnr_retry,
                          qp_num=self.qp.qp_num, data_len=len(private_data))
        param.set_private_data(private_data)
        return param

    def made(self, private_data):
        attr = self.qp.query(e.IBV_QP_MAX_QP_RD_ATOMIC | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_RETRY_CNT
                             | e.IBV_QP_RNR_RETRY)[0]
        return {"ID": driver.keep(self), "PD": driver.keep(self.cmid.pd), "Num": self.qp.qp_num,
                "PrivateData": private_data.hex(), "InitiatorDepth": attr.max_rd_atomic,
                "ResponderResources": attr.max_dest_rd_atomic, "RetryCount": attr.retry_cnt,
                "RNRRetryCount": attr.rnr_retry}

    def close(self):
        """The QP's MRs belong to the context's PD, which remains."""
        self.qp.close()
        for cq in self.cqs:
            cq.close()
        self.cmid.close()


def timeout(*_):
    raise TimeoutError("no event of rdma_cm for %d s" % EVENT_TIMEOUT)


def listen(addr, port):
    endpoint = Endpoint()
    endpoint.cmid.bind_addr(AddrInfo(src=addr, src_service=str(port), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE))
    endpoint.cmid.listen()
    return driver.keep(endpoint)


def unlisten(listener):
    driver.objects[listener].cmid.close()


def accept(listener, send_wr, recv_wr, sge, **param):
    listener = driver.objects[listener]
    request = listener.await_event(ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    private_data = request.private_data
    endpoint = Endpoint(CMID(creator=request, listen_id=listener.cmid), listener.channel)
    request.ack_cm_event()
    endpoint.make_qp(send_wr, recv_wr, sge)
    endpoint.connect_qp()
    endpoint.cmid.accept(endpoint.param(**param))
    endpoint.await_event(ce.RDMA_CM_EVENT_ESTABLISHED).ack_cm_event()
    return endpoint.made(private_data)


def connect(addr, port, send_wr, recv_wr, sge, **param):
    endpoint = Endpoint()
    endpoint.cmid.resolve_addr(AddrInfo(dst=addr, dst_service=str(port), port_space=ce.RDMA_PS_TCP))
    endpoint.await_event(ce.RDMA_CM_EVENT_ADDR_RESOLVED).ack_cm_event()
    endpoint.cmid.resolve_route()
    endpoint.await_event(ce.RDMA_CM_EVENT_ROUTE_RESOLVED).ack_cm_event()
    endpoint.make_qp(send_wr, recv_wr, sge)
    if IWARP:
        endpoint.connect_qp()
    endpoint.cmid.connect(endpoint.param(**param))
    response = endpoint.await_event(ce.RDMA_CM_EVENT_ESTABLISHED if IWARP else ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
    private_data = response.private_data
    response.ack_cm_event()
    if not IWARP:
        endpoint.connect_qp()
        endpoint.cmid.establish()
    return endpoint.made(private_data)


def disconnect(conn):
    driver.objects[conn].cmid.disconnect()


def await_disconnected(conn):
    driver.objects[conn].await_event(ce.RDMA_CM_EVENT_DISCONNECTED).ack_cm_event()


class Param(ctypes.Structure):
    """struct rdma_conn_param."""
    _fields_ = [("private_data", ctypes.c_void_p), ("private_data_len", ctypes.c_uint8)] + [
        (name, ctypes.c_uint8) for name in (
            "responder_resources", "initiator_depth", "flow_control", "retry_count", "rnr_retry_count", "srq")
    ] + [("qp_num", ctypes.c_uint32)]


class Event(ctypes.Structure):
    """struct rdma_cm_event, whose status pyverbs does not show."""
    _fields_ = [("id", ctypes.c_void_p), ("listen_id", ctypes.c_void_p), ("event", ctypes.c_int),
                ("status", ctypes.c_int), ("param", Param)]


class Raw:
    """An ID without a QP, and every event that its channel gets."""
    lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    lib.rdma_create_event_channel.restype = ctypes.c_void_p

    def __init__(self, space):
        self.channel = ctypes.c_void_p(self.lib.rdma_create_event_channel())
        self.id = ctypes.c_void_p()
        self.call("create_id", self.channel, ctypes.byref(self.id), None, space)

    def call(self, name, *args):
        if getattr(self.lib, "rdma_" + name)(*args):
            raise OSError(ctypes.get_errno(), name)

    def next(self):
        """The next event: its ID, and the reported fields."""
        event = ctypes.POINTER(Event)()
        signal.alarm(EVENT_TIMEOUT)
        self.call("get_cm_event", self.channel, ctypes.byref(event))
        signal.alarm(0)
        param = event.contents.param
        found = event.contents.id, {
            "Type": event.contents.event, "Status": event.contents.status,
            "PrivateData": ctypes.string_at(param.private_data, param.private_data_len).hex() if param.private_data else ""}
        self.call("ack_cm_event", event)
        return found

    def close(self):
        self.call("destroy_id", self.id)
        self.lib.rdma_destroy_event_channel(self.channel)


def sockaddr(addr, port):
    addr = ipaddress.ip_address(addr)
    if addr.version == 4:
        return struct.pack("=H", 2) + struct.pack(">H", port) + addr.packed + bytes(8)
    return struct.pack("=H", 10) + struct.pack(">HI", port, 0) + addr.packed + bytes(4)


def attempt(space, addr, port, private_data):
    """Connects, and returns the events up to the final one. Without a listener siw fails at once."""
    raw, events = Raw(space), []
    data = bytes.fromhex(private_data)
    number = 0x123
    if IWARP: # needs an existing QP
        pair = driver.Pair(driver.PD(driver.context), 1, 1, 1, 0)
        pair.qp.modify(QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1), e.IBV_QP_STATE | e.IBV_QP_ACCESS_FLAGS)
        number = pair.qp.qp_num
    param = Param(ctypes.cast(data, ctypes.c_void_p), len(data), 1, 1, 0, 1, 1, 0, number)
    raw.call("resolve_addr", raw.id, None, sockaddr(addr, port), 2000)
    while True:
        event = raw.next()[1]
        events.append(event)
        if event["Type"] == ce.RDMA_CM_EVENT_ADDR_RESOLVED:
            raw.call("resolve_route", raw.id, 2000)
        elif event["Type"] == ce.RDMA_CM_EVENT_ROUTE_RESOLVED:
            try:
                raw.call("connect", raw.id, ctypes.byref(param))
            except OSError as error:
                raw.close()
                return events + [{"Type": ce.RDMA_CM_EVENT_CONNECT_ERROR, "Status": -error.errno, "PrivateData": ""}]
        else:
            raw.close()
            return events


def listen_raw(space, addr, port):
    raw = Raw(space)
    raw.call("bind_addr", raw.id, sockaddr(addr, port))
    raw.call("listen", raw.id, 0)
    return driver.keep(raw)


def reject(listener, private_data):
    """Rejects the next request, or destroys its ID if there is no private data. Returns the request."""
    request, event = driver.objects[listener].next()
    request = ctypes.c_void_p(request)
    if private_data is not None:
        data = bytes.fromhex(private_data)
        driver.objects[listener].call("reject", request, data, len(data))
    driver.objects[listener].call("destroy_id", request)
    return event


signal.signal(signal.SIGALRM, timeout)
driver.COMMANDS.update({function.__name__: function for function in (
    listen, unlisten, accept, connect, disconnect, await_disconnected, attempt, listen_raw, reject)})
driver.serve()
