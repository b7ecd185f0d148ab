package verbs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// Names and values are those of infiniband/verbs.h, because logs, scripts and captures of peers use
// them.
func TestNames(t *testing.T) {
	list := func(names string) map[int]string {
		m := make(map[int]string)
		for i, n := range strings.Fields(names) {
			m[i] = n
		}
		return m
	}
	for _, c := range []struct {
		what string
		is   func(int) fmt.Stringer
		want map[int]string
	}{
		{"WC status", func(i int) fmt.Stringer { return verbs.WCStatus(i) }, list("SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR " +
			"LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR " +
			"REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR " +
			"REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR " +
			"TM_RNDV_INCOMPLETE")},
		{"WC opcode", func(i int) fmt.Stringer { return verbs.WCOpcode(i) }, map[int]string{0: "SEND", 1: "RDMA_WRITE",
			2: "RDMA_READ", 3: "COMP_SWAP", 4: "FETCH_ADD", 5: "BIND_MW", 6: "LOCAL_INV", 7: "TSO", 8: "FLUSH",
			9: "ATOMIC_WRITE", 128: "RECV", 129: "RECV_RDMA_WITH_IMM"}},
		{"WR opcode", func(i int) fmt.Stringer { return verbs.WROpcode(i) }, map[int]string{0: "RDMA_WRITE",
			1: "RDMA_WRITE_WITH_IMM", 2: "SEND", 3: "SEND_WITH_IMM", 4: "RDMA_READ", 5: "ATOMIC_CMP_AND_SWP",
			6: "ATOMIC_FETCH_AND_ADD", 7: "LOCAL_INV", 8: "BIND_MW", 9: "SEND_WITH_INV", 14: "FLUSH", 15: "ATOMIC_WRITE"}},
		{"QP state", func(i int) fmt.Stringer { return verbs.QPState(i) }, list("RESET INIT RTR RTS SQD SQE ERR")},
		{"QP type", func(i int) fmt.Stringer { return verbs.QPType(i) }, map[int]string{2: "RC", 3: "UC", 4: "UD",
			8: "RAW_PACKET", 9: "XRC_SEND", 10: "XRC_RECV"}},
		{"MTU", func(i int) fmt.Stringer { return verbs.MTU(i) }, map[int]string{1: "256", 2: "512", 3: "1024", 4: "2048",
			5: "4096"}},
		{"transport", func(i int) fmt.Stringer { return verbs.Transport(i) }, list("RoCEv2 iWARP")},
		{"port state", func(i int) fmt.Stringer { return verbs.PortState(i) }, list("NOP DOWN INIT ARMED ACTIVE ACTIVE_DEFER")},
		{"node type", func(i int) fmt.Stringer { return verbs.NodeType(i) }, map[int]string{1: "CA", 2: "SWITCH", 3: "ROUTER",
			4: "RNIC"}},
		{"atomic capability", func(i int) fmt.Stringer { return verbs.AtomicCap(i) }, list("NONE HCA GLOB")},
		{"link layer", func(i int) fmt.Stringer { return verbs.LinkLayer(i) }, list("Unspecified InfiniBand Ethernet")},
		{"GID type", func(i int) fmt.Stringer { return verbs.GIDType(i) }, map[int]string{0: "IB", 1: "RoCE v1", 2: "RoCE v2"}},
		{"async event", func(i int) fmt.Stringer { return verbs.AsyncEventType(i) }, list("CQ_ERR QP_FATAL QP_REQ_ERR " +
			"QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR DEVICE_FATAL PORT_ACTIVE PORT_ERR LID_CHANGE " +
			"PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED QP_LAST_WQE_REACHED CLIENT_REREGISTER GID_CHANGE WQ_FATAL")},
	} {
		for i := range 256 {
			want, ok := c.want[i]
			if !ok {
				want = fmt.Sprintf("invalid %s %d", c.what, i)
			}
			if got := c.is(i).String(); got != want {
				t.Errorf("%s %d: %q, want %q", c.what, i, got, want)
			}
		}
	}
	for s := range verbs.WCTMRndvIncomplete + 2 {
		if d := s.Description(); d == "" || strings.Contains(d, "\n") {
			t.Errorf("%v: description %q", s, d)
		}
	}
	if got := (verbs.AccessLocalWrite | verbs.AccessRelaxedOrdering | 1<<15).String(); got != "LOCAL_WRITE|RELAXED_ORDERING|0x8000" {
		t.Error(got)
	}
	if got := verbs.SendFlags(0).String(); got != "0" {
		t.Error(got)
	}
	if got := (verbs.WCGRH | verbs.WCWithImm).String(); got != "GRH|WITH_IMM" {
		t.Error(got)
	}
	if got := (verbs.DeviceXRC | verbs.DeviceManagedFlowSteering).String(); got != "XRC|MANAGED_FLOW_STEERING" {
		t.Error(got)
	}
}

func TestMTUFor(t *testing.T) {
	for n, want := range map[int]verbs.MTU{-1: 0, 255: 0, 256: 1, 1023: 2, 1024: 3, 4095: 4, 4096: 5, 65535: 5} {
		if got := verbs.MTUFor(n); got != want {
			t.Errorf("MTUFor(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestGID(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1":              "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"fe80::5054:ff:fe12:34": "fe80:0000:0000:0000:5054:00ff:fe12:0034",
	} {
		a := netip.MustParseAddr(addr)
		g := verbs.GIDFromAddr(a)
		if g.String() != want || g.Addr() != a {
			t.Errorf("%s: %s, %v", addr, g, g.Addr())
		}
	}
}

func TestErrnos(t *testing.T) {
	for kind, errno := range map[error]syscall.Errno{
		verbs.ErrInvalid: syscall.EINVAL, verbs.ErrNoMemory: syscall.ENOMEM, verbs.ErrBusy: syscall.EBUSY,
		verbs.ErrNotSupported: syscall.EOPNOTSUPP, verbs.ErrQueueFull: syscall.ENOMEM,
		verbs.ErrCQOverrun: syscall.EOVERFLOW, verbs.ErrClosed: syscall.ENOENT,
	} {
		err := fmt.Errorf("outer: %w", verbs.Errorf(kind, "create QP", "MaxSGE %d", 33))
		var got syscall.Errno
		if !errors.Is(err, kind) || !errors.Is(err, errno) || !errors.As(err, &got) || got != errno {
			t.Errorf("%v: errno %v, want %v", kind, got, errno)
		}
		if err.Error() != "outer: create QP: MaxSGE 33" {
			t.Error(err)
		}
	}
	if errors.Is(verbs.ErrQueueFull, verbs.ErrNoMemory) {
		t.Error("ErrQueueFull matches ErrNoMemory")
	}
}
