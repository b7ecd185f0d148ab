# Completion counters by pyverbs. rdma-core 65 has them there, and no test of them. This module is
# beside its tests, whose resources it uses.
import errno
import unittest

from pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from pyverbs.libibverbs_enums import ibv_wr_opcode
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttachCompCntrAttr
from tests.base import RCResources, RDMATestCase
import tests.utils as u

WRS, BYTES = 0, 1
SEND, RECV, READ, REMOTE_READ, WRITE, REMOTE_WRITE = (1 << i for i in range(6))


class Counted(RCResources):
    """An RC QP with a counter for each type and operation of counted."""
    def __init__(self, counted, **kwargs):
        self.counted, self.counters = counted, []
        super().__init__(**kwargs)

    def create_qps(self):
        super().create_qps()
        for kind, ops in self.counted:
            counter = CompCntr(self.ctx, CompCntrInitAttr(cntr_type=kind))
            self.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(op_mask=ops))
            self.counters.append(counter)

    def counts(self):
        return [(c.read(), c.read_err()) for c in self.counters]


class CompCntrTest(RDMATestCase):
    def setUp(self):
        super().setUp()
        self.iters = 20

    def test_sends(self):
        self.create_players(Counted, counted=[(WRS, SEND), (BYTES, RECV)])
        u.traffic(**self.traffic_args)
        for side in self.client, self.server:
            self.assertEqual(side.counts(), [(self.iters, 0), (self.iters * side.msg_size, 0)])

    def test_errors(self):
        self.create_players(Counted, counted=[(WRS, SEND)])
        with self.assertRaises(PyverbsRDMAError) as caught:
            self.client.qp.attach_comp_cntr(self.client.counters[0], QPAttachCompCntrAttr(op_mask=RECV))
        self.assertEqual(caught.exception.error_code, errno.EINVAL)  # no longer in INIT
        with self.assertRaises(PyverbsRDMAError) as caught:
            self.client.counters[0].close()
        self.assertEqual(caught.exception.error_code, errno.EBUSY)

    def test_values(self):
        self.create_players(Counted, counted=[(WRS, SEND)])
        counter = self.client.counters[0]
        counter.set(5)
        counter.inc(2)
        counter.set_err(7)
        counter.inc_err(1)
        self.assertEqual((counter.read(), counter.read_err()), (7, 8))
