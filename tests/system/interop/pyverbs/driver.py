"""Verbs on a kernel device by command. Each line of standard input is a JSON object, and each line of
standard output the answer to one.

A command is {"op": function, argument: value, ...}, the answer {"result": ...} or {"error": text, "errno": number}.
PDs, MRs and QPs are named by the numbers that their creation returned. Work requests, attributes and
completions have the field names of Go's package verbs. Enumerations and flags have the same numbers.
"""
import base64
import enum
import hashlib
import importlib
import ipaddress
import json
import os
import socket
import sys
import time
import types

from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
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
context = Context(name=sys.argv[1])
objects = []


def keep(obj):
    objects.append(obj)
    return len(objects) - 1


class Pair:
    """A QP with a CQ for each of its queues. flushes: FLUSH can be posted, which only the extended functions post."""

    def __init__(self, pd, send_wr, recv_wr, sge, inline, flushes=False):
        self.cqs = [CQ(context, send_wr), CQ(context, recv_wr)]
        cap = QPCap(max_send_wr=send_wr, max_recv_wr=recv_wr, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline)
        attr = dict(qp_type=e.IBV_QPT_RC, scq=self.cqs[0], rcq=self.cqs[1], cap=cap, sq_sig_all=0)
        if flushes:
            self.qp = QPEx(context, QPInitAttrEx(pd=pd, send_ops_flags=e.IBV_QP_EX_WITH_FLUSH, comp_mask=e.IBV_QP_INIT_ATTR_PD
                                                 | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, **attr))
        else:
            self.qp = QP(pd, QPInitAttr(**attr))

    def close(self):
        for obj in [self.qp] + self.cqs:
            obj.close()


def gids():
    found = []
    for index in range(context.query_port(1).gid_tbl_len):
        gid = ipaddress.IPv6Address(context.query_gid(1, index).gid)
        if not int(gid):
            break
        found.append(str(gid))
    return found


def counters():
    """The counters of the device, by name. The kernel caches them for 10 ms."""
    folder = "/sys/class/infiniband/%s/ports/1/hw_counters/" % sys.argv[1]
    found = {}
    for name in os.listdir(folder):
        if name != "lifespan":
            with open(folder + name) as file:
                found[name] = int(file.read())
    return found


def alloc_pd():
    return keep(PD(context))


def reg_mr(pd, length, access):
    mr = MR(objects[pd], length, access)
    return {"ID": keep(mr), "Addr": mr.buf, "LKey": mr.lkey, "RKey": mr.rkey}


def alloc_mw(pd, kind):
    mw = MW(objects[pd], kind)
    return {"ID": keep(mw), "RKey": mw.rkey}


def bind_mw(qp, mw, wr_id, mr, offset, length, access):
    """Posts the binding of a window, and returns its new rkey."""
    qp, mw, mr = objects[qp].qp, objects[mw], objects[mr]
    info = MWBindInfo(mr, mr.buf + offset, length, access)
    if mw.type == e.IBV_MW_TYPE_1:
        qp.bind_mw(mw, MWBind(info, e.IBV_SEND_SIGNALED, wr_id))
        return mw.rkey
    request = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW)
    request.set_bind_wr(mw, info)
    qp.post_send(request)
    return request.rkey


def write(mr, offset, data):
    data = base64.b64decode(data)
    objects[mr].write(data, len(data), offset)


def read(mr, offset, length):
    return base64.b64encode(objects[mr].read(length, offset)).decode()


def fill(mr, offset, length, seed):
    """SHAKE128 of the seed's eight bytes, big-endian."""
    objects[mr].write(hashlib.shake_128(seed.to_bytes(8, "big")).digest(length), length, offset)


def digest(mr, offset, length):
    return hashlib.sha256(objects[mr].read(length, offset)).hexdigest()


def create_qp(pd, send_wr, recv_wr, sge, inline, flushes):
    pair = Pair(objects[pd], send_wr, recv_wr, sge, inline, flushes)
    return {"ID": keep(pair), "Num": pair.qp.qp_num}


def close(obj):
    objects[obj].close()
    objects[obj] = None


def modify(qp, attr, mask):
    ah, route = attr["AHAttr"], attr["AHAttr"]["GRH"]
    wanted = QPAttr(qp_state=attr["QPState"], port_num=attr["PortNum"], path_mtu=attr["PathMTU"])
    wanted.qp_access_flags = attr["QPAccessFlags"]
    wanted.dest_qp_num, wanted.rq_psn, wanted.sq_psn = attr["DestQPNum"], attr["RQPSN"], attr["SQPSN"]
    wanted.max_rd_atomic, wanted.max_dest_rd_atomic = attr["MaxRDAtomic"], attr["MaxDestRDAtomic"]
    wanted.min_rnr_timer, wanted.timeout = attr["MinRNRTimer"], attr["Timeout"]
    wanted.retry_cnt, wanted.rnr_retry = attr["RetryCnt"], attr["RNRRetry"]
    if mask & e.IBV_QP_AV:
        gid = GID(bytes(route["DGID"]).hex(":", 2))
        wanted.ah_attr = AHAttr(is_global=1, port_num=ah["PortNum"], gr=GlobalRoute(
            dgid=gid, sgid_index=route["SGIDIndex"], hop_limit=route["HopLimit"],
            traffic_class=route["TrafficClass"], flow_label=route["FlowLabel"]))
    objects[qp].qp.modify(wanted, mask)


def state(qp):
    return int(objects[qp].qp.query(e.IBV_QP_STATE)[0].qp_state)


def sg_list(wr):
    """pyverbs refuses an empty list. A list with an empty entry has the same effect."""
    sges = [SGE(sge["Addr"], sge["Length"], sge["LKey"]) for sge in wr["SGList"] or []] or [SGE(0, 0, 0)]
    return {"num_sge": len(sges), "sg": sges}


def post_flush(qp, wr):
    qp.wr_start()
    qp.wr_id, qp.wr_flags = wr["WRID"], wr["Flags"]
    qp.wr_flush(wr["RKey"], wr["RemoteAddr"], wr["FlushLength"], wr["FlushType"], wr["FlushLevel"])
    qp.wr_complete()


def post_send(qp, wr):
    opcode = wr["Opcode"]
    if opcode == getattr(e, "IBV_WR_FLUSH", None):
        return post_flush(objects[qp].qp, wr)
    sges = {} if opcode == e.IBV_WR_LOCAL_INV else sg_list(wr)
    request = SendWR(wr_id=wr["WRID"], opcode=opcode, send_flags=wr["Flags"], **sges)
    if opcode in (e.IBV_WR_LOCAL_INV, e.IBV_WR_SEND_WITH_INV):
        request.imm_data = wr["InvalidateRKey"] # a union
        request.set_wr_rdma(wr["InvalidateRKey"], 0) # siw's library reads it from there
    if opcode in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
        request.imm_data = socket.htonl(wr["ImmData"])
    if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
        request.set_wr_atomic(wr["RKey"], wr["RemoteAddr"], wr["CompareAdd"], wr["Swap"])
    elif opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
        request.set_wr_rdma(wr["RKey"], wr["RemoteAddr"])
    objects[qp].qp.post_send(request)


def post_recv(qp, wr):
    objects[qp].qp.post_recv(RecvWR(wr_id=wr["WRID"], **sg_list(wr)))


def completion(wc):
    data = wc.imm_data & 0xffffffff
    return {"WRID": wc.wr_id, "Status": int(wc.status), "Opcode": int(wc.opcode), "Flags": int(wc.wc_flags),
            "ByteLen": wc.byte_len, "ImmData": socket.ntohl(data), "InvalidatedRKey": data, "QPNum": wc.qp_num}


def poll(qp, queue, n, timeout):
    """Up to n completions of queue 0 (send) or 1 (receive), fewer after the timeout in seconds."""
    end, found = time.monotonic() + timeout, []
    while len(found) < n:
        found += map(completion, objects[qp].cqs[queue].poll(n - len(found))[1])
        if time.monotonic() >= end:
            break
        time.sleep(0.0005)
    return found


COMMANDS = {function.__name__: function for function in (
    gids, counters, alloc_pd, reg_mr, alloc_mw, bind_mw, write, read, fill, digest, create_qp, close, modify, state, post_send,
    post_recv, poll)}


def answer(command):
    try:
        return {"result": COMMANDS[command.pop("op")](**command)}
    except PyverbsRDMAError as error:
        return {"error": str(error), "errno": error.error_code or 0}
    except Exception as error: # a mistake in the command: its sender reads it
        return {"error": "%s: %s" % (type(error).__name__, error), "errno": 0}


def serve():
    print(json.dumps({"result": "ready"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
