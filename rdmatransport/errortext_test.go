package rdmatransport_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// repeated returns the part of an error's text that repeats an earlier part, or "".
func repeated(text string) string {
	parts := strings.Split(text, ": ")
	for i, p := range parts {
		for _, before := range parts[:i] {
			if p == before || strings.HasPrefix(before, p+" ") {
				return p
			}
		}
	}
	return ""
}

// TestErrorsDoNotRepeat checks the errors that a provider returns to verbs and rdmacm, which add
// the operation.
func TestErrorsDoNotRepeat(t *testing.T) {
	if s := repeated("modify QP 0x11: modify QP: no stream"); s != "modify QP" {
		t.Fatalf("the test finds %q", s)
	}
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	check(err)
	defer host.Close()
	dev, err := rdmatransport.Open(host, nil)
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(16, nil)
	check(err)
	ch, err := rdmacm.CreateEventChannel(dev)
	check(err)

	errs := map[string]error{}
	init := verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Transport: verbs.IWARP}
	qp, err := pd.CreateQP(&init)
	check(err)
	port := &verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1}
	check(qp.Modify(port, verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	errs["iWARP QP without a stream"] = qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, LLPStream: 1},
		verbs.QPAttrState|verbs.QPAttrLLPStream)
	init.Transport = verbs.RoCEv2
	qp, err = pd.CreateQP(&init)
	check(err)
	check(qp.Modify(port, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	errs["RoCE QP with addresses of two IP versions"] = qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: verbs.MTU1024,
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1,
			GRH: verbs.GRH{DGID: verbs.GIDFromAddr(netip.MustParseAddr("2001:db8::1")), SGIDIndex: 1}},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)

	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		id := func(space rdmacm.PortSpace) *rdmacm.ID {
			id, err := ch.CreateID(space, nil)
			check(err)
			check(id.SetTransports(transport))
			return id
		}
		name := func(s string) string { return fmt.Sprintf("%v %s", transport, s) }
		for _, dst := range []string{"10.9.9.9:7471", "[2001:db8::1]:7471", "239.1.2.3:7471"} {
			errs[name("resolve "+dst)] = id(rdmacm.TCP).ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(dst), 0)
		}
		errs[name("resolve from another IP version")] = id(rdmacm.TCP).ResolveAddr(netip.MustParseAddrPort("10.0.0.1:0"),
			netip.MustParseAddrPort("[fe80::1]:7471"), 0)
		_, errs[name("dial")] = rdmacm.Dial(t.Context(), dev, "10.9.9.9:7471", &rdmacm.Config{Transport: transport})
		errs[name("listen in port space UDP")] = func() error {
			l := id(rdmacm.UDP)
			check(l.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
			return l.Listen(1)
		}()
		sync, err := rdmacm.CreateSyncID(rdmacm.TCP, dev)
		check(err)
		check(sync.SetTransports(transport))
		check(sync.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7471")))
		check(sync.ResolveRoute(t.Context()))
		errs[name("connect with too much private data")] = sync.ID.Connect(&rdmacm.ConnParam{PrivateData: make([]byte, 4096), QPNum: 17})
		errs[name("connect without a QP number")] = sync.ID.Connect(&rdmacm.ConnParam{QPNum: 1 << 24})
		errs[name("disconnect too early")] = sync.ID.Disconnect()
		errs[name("establish too early")] = sync.ID.Establish()
	}
	made := 0
	for what, err := range errs {
		if err == nil {
			continue // of the other transport
		}
		made++
		t.Logf("%s: %v", what, err)
		if s := repeated(err.Error()); s != "" {
			t.Errorf("%s: %q says %q twice", what, err, s)
		}
	}
	if made < 16 {
		t.Errorf("only %d errors were made", made)
	}
}
