//go:build linux

package interop

import (
	"context"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// SoftRNIC's addresses in a peer's networks.
const (
	softrnicCIDR4 = "10.77.0.100/24"
	softrnicCIDR6 = "fd77::100/64"
)

var (
	softrnicAddr4 = netip.MustParsePrefix(softrnicCIDR4).Addr()
	softrnicAddr6 = netip.MustParsePrefix(softrnicCIDR6).Addr()
	// One MAC for all, so that no neighbour caches another.
	softrnicMAC = net.HardwareAddr{0x02, 0, 0, 0x77, 0, 100}
)

// softrnic is a SoftRNIC device in this process.
type softrnic struct {
	t   *testing.T
	dev *verbs.Device
}

// openSoftRNIC opens a device behind a link, until the test ends.
func openSoftRNIC(t *testing.T, l link.Link, cfg *rdmatransport.Config) device {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{softrnicCIDR4, softrnicCIDR6}})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, host.Close)
	dev, err := rdmatransport.Open(host, cfg)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, dev.Close)
	return softrnic{t, dev}
}

// openTAP opens a link on a TAP in a namespace's bridge.
func openTAP(t *testing.T, n *peer.Netns) (l link.Link) {
	t.Helper()
	if err := n.Do(func() (err error) {
		l, err = tap.Open("softrnic0", &tap.Config{Bridge: n.Bridge, MTU: n.MTU, MAC: softrnicMAC})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// openPacket opens a link on one end of a veth whose other end is in a namespace's bridge.
func openPacket(t *testing.T, n *peer.Netns) (l link.Link) {
	t.Helper()
	veth := n.Veth(t)
	if err := n.Do(func() (err error) {
		l, err = packet.Open(veth, &packet.Config{MAC: softrnicMAC})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

func closing(t *testing.T, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

func (s softrnic) in(t *testing.T) device { return softrnic{t, s.dev} }

func (s softrnic) GIDs() (gids []netip.Addr) {
	table, err := s.dev.GIDTable(1)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range table {
		gids = append(gids, e.GID.Addr())
	}
	return gids
}

func (s softrnic) allocPD() domain {
	pd, err := s.dev.AllocPD()
	if err != nil {
		s.t.Fatal(err)
	}
	closing(s.t, pd.Close)
	return &softrnicDomain{softrnic: s, pd: pd}
}

type softrnicDomain struct {
	softrnic
	pd  *verbs.PD
	qps []*verbs.QP
}

func (d *softrnicDomain) regMR(length int, access verbs.Access) memory {
	mr, err := d.pd.RegMR(make([]byte, length), access)
	if err != nil {
		d.t.Fatal(err)
	}
	closing(d.t, mr.Close)
	return softrnicMemory{mr, d}
}

type softrnicMemory struct {
	*verbs.MR
	domain *softrnicDomain
}

// inOrder orders f, for Go's race detector, after the peers' earlier accesses to the memory and
// before their later ones. Nothing else does, because a peer's WRITE or READ completes only at the
// peer. QPs are locked while they access memory.
func (m softrnicMemory) inOrder(f func()) {
	passLocks := func() {
		for _, qp := range m.domain.qps {
			_ = qp.State()
		}
	}
	passLocks()
	f()
	passLocks()
}

func (m softrnicMemory) Write(off int, data []byte) {
	m.inOrder(func() { copy(m.Buf()[off:], data) })
}

func (m softrnicMemory) Read(off, n int) (data []byte) {
	m.inOrder(func() { data = slices.Clone(m.Buf()[off : off+n]) })
	return data
}

func (m softrnicMemory) Fill(off, n int, seed uint64) {
	h := sha3.NewSHAKE128()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, seed))
	m.inOrder(func() { _, _ = h.Read(m.Buf()[off : off+n]) })
}

func (m softrnicMemory) Digest(off, n int) string {
	h := sha256.New()
	m.inOrder(func() { h.Write(m.Buf()[off : off+n]) })
	return hex.EncodeToString(h.Sum(nil))
}

func (d *softrnicDomain) createQP(size verbs.QPCap) queuePair {
	send, recv := d.createCQ(size.MaxSendWR), d.createCQ(size.MaxRecvWR)
	qp, err := d.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: send, RecvCQ: recv, Cap: size})
	if err != nil {
		d.t.Fatal(err)
	}
	d.qps = append(d.qps, qp)
	return softrnicQP{qp, d.t}
}

// createCQ creates a CQ with its own completion channel.
func (d *softrnicDomain) createCQ(size int) *verbs.CQ {
	channel, err := d.dev.CreateCompChannel()
	if err != nil {
		d.t.Fatal(err)
	}
	closing(d.t, channel.Close)
	cq, err := d.dev.CreateCQ(size, &verbs.CQInitAttr{Channel: channel})
	if err != nil {
		d.t.Fatal(err)
	}
	closing(d.t, cq.Close)
	return cq
}

func (d *softrnicDomain) allocMW(kind verbs.MWType) window {
	mw, err := d.pd.AllocMW(kind)
	if err != nil {
		d.t.Fatal(err)
	}
	return softrnicWindow{mw, d.t}
}

type softrnicWindow struct {
	*verbs.MW
	t *testing.T
}

func (w softrnicWindow) Dealloc() {
	if err := w.MW.Close(); err != nil {
		w.t.Error(err)
	}
}

type softrnicQP struct {
	*verbs.QP
	t *testing.T
}

func (q softrnicQP) bindMW(w window, id uint64, m memory, off, n int, access verbs.Access) error {
	mw, mr := w.(softrnicWindow).MW, m.(softrnicMemory).MR
	info := verbs.MWBindInfo{MR: mr, Addr: mr.Addr() + uint64(off), Length: uint64(n), Access: access}
	if mw.Type() == verbs.MWType1 {
		return q.BindMW(mw, id, verbs.SendSignaled, info)
	}
	return q.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.BindMW, Flags: verbs.SendSignaled,
		Bind: &verbs.MWBind{MW: mw, RKey: verbs.IncRKey(mw.RKey()), MWBindInfo: info}})
}

// Destroy leaves the CQs to the end of the test.
func (q softrnicQP) Destroy() {
	if err := q.QP.Close(); err != nil {
		q.t.Error(err)
	}
}

func (q softrnicQP) PollSend(n int, timeout time.Duration) []verbs.WC {
	q.t.Helper()
	return poll(q.t, q.SendCQ(), n, timeout)
}

func (q softrnicQP) PollRecv(n int, timeout time.Duration) []verbs.WC {
	q.t.Helper()
	return poll(q.t, q.RecvCQ(), n, timeout)
}

func poll(t *testing.T, cq *verbs.CQ, n int, timeout time.Duration) []verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	wcs := make([]verbs.WC, n)
	for have := 0; ; {
		if err := cq.ReqNotify(false); err != nil {
			t.Fatal(err)
		}
		got, err := cq.Poll(wcs[have:])
		if err != nil {
			t.Fatal(err)
		}
		if have += got; have == n {
			return wcs
		}
		if got > 0 {
			continue
		}
		if _, err := cq.Channel().GetEvent(ctx); err != nil {
			return wcs[:have]
		}
		if err := cq.AckEvents(1); err != nil {
			t.Fatal(err)
		}
	}
}

// softrnicProgram returns the program's path. A test without peers is skipped before the program is
// built, since that may be impossible there.
func softrnicProgram(t *testing.T) string {
	t.Helper()
	peer.Boot(t)
	program, err := libraries.Program()
	if err != nil {
		t.Fatal(err)
	}
	return program
}
