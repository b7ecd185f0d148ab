//go:build linux

package interop

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// Traits of the table of kernels on which no other test depends: each is what the machine does.
// FlushICRC is in flush_test.go.

// TestOnDemandPaging writes to memory of rxe with on-demand paging, and reads from it, in the
// middle of a page. With the trait ODPPlaces, rxe takes the beginning of the page instead, and both
// succeed. Kernels whose rxe has no such memory refuse it.
func TestOnDemandPaging(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux := openKernel(t, p).(kernel)
	there := newSide(t, linux, p.Addr4())
	const page, room, off, n = 4096, 2 * 4096, 100, 16
	remote, err := there.pd.(kernelDomain).TryRegMR(room, allAccess|verbs.AccessOnDemand)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		if p.Kernel.Has(peer.ODPPlaces) {
			t.Errorf("%s: rxe has no on-demand paging (%v), but the table says what it does wrong", p.Versions, err)
		}
		t.Logf("result: %s: rxe has no on-demand paging", p.Versions)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	if remote.Addr()%page != 0 {
		t.Fatalf("the memory is at %#x, which is not the beginning of a page", remote.Addr())
	}
	at := off
	if p.Kernel.Has(peer.ODPPlaces) {
		at = 0
	}
	here := newSide(t, openSoftRNIC(t, captured(t, openTAP(t, p.Netns)), nil), softrnicAddr4)
	connect(t, here, there, usual)
	local := here.pd.regMR(room, allAccess)
	transfer := func(opcode verbs.WROpcode) {
		t.Helper()
		if err := here.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: opcode, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(0, n)},
			RemoteAddr: remote.Addr() + page + off, RKey: remote.RKey()}); err != nil {
			t.Fatal(err)
		}
		if got := statuses(t, here.qp.PollSend(1, patience)); len(got) != 1 || got[0] != ok {
			t.Fatalf("%v completes as %v", opcode, got)
		}
	}

	want := make([]byte, room)
	local.Fill(0, n, 1)
	copy(want[page+at:], local.Read(0, n))
	transfer(verbs.RDMAWrite)
	if got := remote.Read(0, room); !bytes.Equal(got, want) {
		t.Errorf("%s: a WRITE to byte %d of a page is not at byte %d: the page is %x …", p.Versions, off, at, got[page:page+off+n])
	}
	remote.Fill(0, room, 2)
	transfer(verbs.RDMARead)
	if got := local.Read(0, n); !bytes.Equal(got, remote.Read(page+at, n)) {
		t.Errorf("%s: a READ from byte %d of a page does not return what is at byte %d", p.Versions, off, at)
	}
}

// TestOwnsPort: which network namespaces have UDP port 4791 taken by rxe. Ends with rxe0 as it was.
func TestOwnsPort(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 52})[0]
	useTransport(t, p, verbs.RoCEv2)
	taken := func(where, prefix string, want bool) {
		t.Helper()
		const bind = `python3 -c '
import errno, socket
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("", 4791))
    print("free")
except OSError as error:
    print("taken" if error.errno == errno.EADDRINUSE else error)'`
		word := "free"
		if want {
			word = "taken"
		}
		if got := strings.TrimSpace(p.Run(t, prefix+bind)); got != word {
			t.Errorf("%s: in %s the port is %s, want %s", p.Versions, where, got, word)
		}
	}
	const inOther = "/bin/ip netns exec other "
	p.Run(t, "/bin/ip netns add other && /bin/ip -n other link set lo up")
	defer p.Run(t, "/bin/ip netns del other")
	taken("the first namespace, with a device", "", true)
	taken("another namespace, without a device", inOther, false)
	p.Run(t, inOther+"rdma link add rxe9 type rxe netdev lo")
	taken("another namespace, with a device", inOther, p.Kernel.Has(peer.OwnsPortByNets))
	p.Run(t, "rdma link del rxe9")
	p.Run(t, "rdma link del rxe0")
	taken("the first namespace, without any device", "", p.Kernel.Has(peer.OwnsPort))
	p.Run(t, "rdma link add rxe0 type rxe netdev eth0")
	taken("the first namespace, with a device again", "", true)
}
