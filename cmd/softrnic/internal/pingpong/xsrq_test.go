package pingpong

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

var xrcAddresses = regexp.MustCompile(`(?m)^ *(local|remote): LID 0000, QPN RECV ([0-9a-f]{6}) SEND ([0-9a-f]{6}), PSN ([0-9a-f]{6}), SRQN ([0-9a-f]{6}), GID (\S+)$`)

func checkXSRQ(t *testing.T, o clitest.Outcome) (local, remote string) {
	t.Helper()
	if o.Code != 0 || o.Stderr != "" || !strings.HasSuffix(o.Stdout, "\nsuccess\n") {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", o.Code, o.Stderr, o.Stdout)
	}
	at := map[string]string{}
	for _, m := range xrcAddresses.FindAllStringSubmatch(o.Stdout, -1) {
		at[m[1]] = strings.Join(m[2:], " ")
	}
	return at["local"], at["remote"]
}

func TestPingpongXSRQ(t *testing.T) {
	for _, flags := range []string{"", "-e -n 1", "-s 1 -n 700", "-s 100000 -n 20 -m 4096"} {
		for _, family := range []struct{ name, server, client, to string }{
			{"IPv4", "10.0.0.1/24", "10.0.0.2/24", "10.0.0.1"},
			{"IPv6", "fd00::1/64", "fd00::2/64", "fd00::1"},
		} {
			t.Run(family.name+flags, func(t *testing.T) {
				lan := new(pipe.Switch)
				args := append([]string{"xsrq"}, strings.Fields(flags)...)
				server := startPingpong(t.Context(), lan, append(args, "--addr", family.server)...)
				client := startPingpong(t.Context(), lan, append(args, "--addr", family.client, family.to)...)
				cl, cr := checkXSRQ(t, <-client)
				sl, sr := checkXSRQ(t, <-server)
				if cl == "" || cl != sr || cr != sl {
					t.Errorf("client: local %s, remote %s; server: local %s, remote %s", cl, cr, sl, sr)
				}
			})
		}
	}
}

// xsrqHost plays the clients of one host as ibv_xsrq_pingpong does. Each has an SRQ in a shared XRC
// domain, and reads and writes the formats of that program's scanf and printf.
type xsrqHost struct {
	t    *testing.T
	node *node.Node
	xrcd *verbs.XRCD
}

func newXSRQHost(t *testing.T, lan *pipe.Switch) *xsrqHost {
	t.Helper()
	f := node.Flags{Addr: []node.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.2/24")}}}
	n, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, n.Close)
	x, err := n.Dev.OpenXRCD(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, x.Close)
	return &xsrqHost{t, n, x}
}

func closing(t *testing.T, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

type xsrqClient struct {
	host                           *xsrqHost
	conn                           net.Conn
	sendCQ, recvCQ                 *completion.Waiter
	srq                            *verbs.SRQ
	recv, send                     *verbs.QP
	mr                             *verbs.MR
	theirSRQ, theirRecv, theirSend uint32
}

func try[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// client creates a client that is not connected.
func (h *xsrqHost) client(size int) *xsrqClient {
	t, dev := h.t, h.node.Dev
	c := &xsrqClient{host: h}
	pd := try(dev.AllocPD())(t)
	closing(t, pd.Close)
	c.mr = try(pd.RegMR(make([]byte, 2*size), verbs.AccessLocalWrite))(t)
	closing(t, c.mr.Close)
	c.sendCQ, c.recvCQ = try(completion.NewWaiter(dev, 1, completion.Event))(t), try(completion.NewWaiter(dev, 1, completion.Event))(t)
	closing(t, c.sendCQ.Close)
	closing(t, c.recvCQ.Close)
	c.srq = try(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: h.xrcd, CQ: c.recvCQ.CQ}))(t)
	closing(t, c.srq.Close)
	c.recv = try(h.xrcd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t)
	closing(t, c.recv.Close)
	c.send = try(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCSend, SendCQ: c.sendCQ.CQ,
		Cap: verbs.QPCap{MaxSendWR: 100, MaxSendSGE: 1}}))(t)
	closing(t, c.send.Close)
	for _, qp := range []*verbs.QP{c.recv, c.send} {
		try(0, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))(t)
	}
	c.postRecv()
	return c
}

func (c *xsrqClient) postRecv() {
	try(0, c.srq.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{c.mr.SGE(0, c.mr.Length()/2)}}))(c.host.t)
}

// connect exchanges addresses with the server, which sends its address in one piece of 66 bytes.
func (c *xsrqClient) connect(server netip.AddrPort) {
	t := c.host.t
	c.conn = try(c.host.node.Host.DialStream(t.Context(), netip.AddrPort{}, server))(t)
	const psn = 0xfffffe // wraps
	fmt.Fprintf(c.conn, "%04x:%06x:%06x:%06x:%06x:%32s\x00", 0, c.recv.Num(), c.send.Num(), psn, c.srq.Num(),
		"00000000000000000000ffff0a000002")
	msg := make([]byte, 66)
	try(io.ReadFull(c.conn, msg))(t)
	if !regexp.MustCompile(`^0000(:[0-9a-f]{6}){4}:00000000000000000000ffff0a000001\x00$`).Match(msg) {
		t.Fatalf("the server says %q", msg)
	}
	var theirPSN uint32
	try(fmt.Sscanf(string(msg[5:32]), "%x:%x:%x:%x", &c.theirRecv, &c.theirSend, &theirPSN, &c.theirSRQ))(t)

	way := verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GIDFromAddr(server.Addr()), HopLimit: 5,
		SGIDIndex: uint8(try(c.host.node.GID(1, server.Addr()))(t).Index)}}
	const toRTR = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	const toRTS = verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrSQPSN
	rtr := verbs.QPAttr{QPState: verbs.StateRTR, DestQPNum: c.theirSend, PathMTU: verbs.MTU1024, RQPSN: theirPSN, MinRNRTimer: rnrTimer,
		AHAttr: way}
	rts := verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 14, SQPSN: psn, RetryCnt: 7, RNRRetry: 7}
	try(0, c.recv.Modify(&rtr, toRTR|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))(t)
	try(0, c.recv.Modify(&rts, toRTS))(t)
	rtr.DestQPNum = c.theirRecv
	try(0, c.send.Modify(&rtr, toRTR))(t)
	try(0, c.send.Modify(&rts, toRTS|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrMaxQPRDAtomic))(t)
}

// play answers messages received on any QP of the host, and returns the numbers of these QPs.
func (c *xsrqClient) play(ctx context.Context, tests int) (through []uint32, err error) {
	var wcs [1]verbs.WC
	for i := range tests {
		if _, err := c.recvCQ.Wait(ctx, wcs[:]); err != nil {
			return nil, err
		}
		through = append(through, wcs[0].QPNum)
		c.postRecv()
		wr := verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{c.mr.SGE(c.mr.Length()/2, c.mr.Length()/2)}, RemoteSRQN: c.theirSRQ}
		if i == tests-1 {
			wr.Flags = verbs.SendSignaled
		}
		if err := c.send.PostSend(&wr); err != nil {
			return nil, err
		}
	}
	_, err = c.sendCQ.Wait(ctx, wcs[:])
	return through, err
}

// TestPingpongXSRQClients: one host with several clients. Their messages are received on the QPs of
// all clients in turn.
func TestPingpongXSRQClients(t *testing.T) {
	const clients, tests, size = 3, 7, 3000
	lan := new(pipe.Switch)
	server := startPingpong(t.Context(), lan, "xsrq", "-c", fmt.Sprint(clients), "-n", fmt.Sprint(tests), "-s", fmt.Sprint(size),
		"--addr", "10.0.0.1/24")
	h := newXSRQHost(t, lan)
	var all []*xsrqClient
	for range clients {
		all = append(all, h.client(size))
	}
	for _, c := range all {
		c.connect(netip.MustParseAddrPort("10.0.0.1:18515"))
		if c.theirSRQ != all[0].theirSRQ || c != all[0] && c.theirRecv == all[0].theirRecv {
			t.Errorf("the server has SRQ %#x and QP %#x", c.theirSRQ, c.theirRecv)
		}
	}
	type played struct {
		through []uint32
		err     error
	}
	results := make([]chan played, clients)
	for i, c := range all {
		results[i] = make(chan played, 1)
		go func() {
			through, err := c.play(t.Context(), tests)
			results[i] <- played{through, err}
		}()
	}
	for i := range all {
		r := <-results[i]
		if r.err != nil {
			t.Fatal(r.err)
		}
		for j, qpn := range r.through {
			if want := all[(i+j)%clients].recv.Num(); qpn != want {
				t.Errorf("message %d to client %d came through QP %#x, want %#x", j, i, qpn, want)
			}
		}
	}
	for _, c := range all { // each sends END, and the server sends it when all have
		try(c.conn.Write([]byte("END\x00")))(t)
	}
	for _, c := range all {
		msg := make([]byte, 4)
		try(io.ReadFull(c.conn, msg))(t)
		if !bytes.Equal(msg, []byte("END\x00")) {
			t.Errorf("the server ends with %q", msg)
		}
		closing(t, c.conn.Close)
	}
	o := <-server
	checkXSRQ(t, o)
	if n := len(xrcAddresses.FindAllString(o.Stdout, -1)); n != 2*clients {
		t.Errorf("%d addresses in\n%s", n, o.Stdout)
	}
}

func TestPingpongXSRQRefusals(t *testing.T) {
	for said, want := range map[string]string{
		strings.Repeat("x", 66): "ibv_*_pingpong",
		"0000:000001:000002:000003:1000000:0000000000000000000ffff0a000002\x00": "field 5",
		"0000:000001:000002:000003:000004:00000000000000000000000000000000\x00": "-g INDEX",
	} {
		lan := new(pipe.Switch)
		server := startPingpong(t.Context(), lan, "xsrq", "--addr", "10.0.0.1/24")
		try(dialServer(t, lan).Write([]byte(said)))(t)
		if o := <-server; o.Code != 1 || !strings.Contains(o.Stderr, want) {
			t.Errorf("%q: %+v", said, o)
		}
	}
	for _, args := range []string{"-c 0", "-c 257", "-n 0", "-s 0", "-s 1073741824"} {
		o := <-startPingpong(t.Context(), new(pipe.Switch), append([]string{"xsrq"}, strings.Fields(args)...)...)
		if o.Code != cli.ExitUsage || !strings.Contains(o.Stderr, strings.Fields(args)[1]) {
			t.Errorf("%s: %+v", args, o)
		}
	}
}

func TestPingpongXSRQInterrupted(t *testing.T) {
	const dest = "0000:000001:000002:000003:000004:00000000000000000000ffff0a000002\x00"
	// The server waits for a client, then for the client's address, then for a message.
	for _, said := range []string{"", dest[:5], dest} {
		ctx, cancel := context.WithCancel(t.Context())
		lan := new(pipe.Switch)
		server := startPingpong(ctx, lan, "xsrq", "-n1", "--addr", "10.0.0.1/24")
		if said != "" {
			conn := dialServer(t, lan)
			try(conn.Write([]byte(said)))(t)
			if said == dest {
				try(io.ReadFull(conn, make([]byte, 66)))(t)
			}
		}
		cancel()
		checkInterrupted(t, <-server)
	}
}

func FuzzParseXRCDest(f *testing.F) {
	f.Add([]byte("0012:000011:000012:abcdef:000001:00000000000000000000ffff0a4d0002\x00"))
	f.Add([]byte(strings.Repeat(":", xrcDestLen)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseXRCDest(b)
		if err == nil && !strings.EqualFold(string(d.encode()), string(b)) {
			if again, err := parseXRCDest(d.encode()); err != nil || again != d {
				t.Errorf("%q is %v, which is %v, %v", b, d, again, err)
			}
		}
	})
}
