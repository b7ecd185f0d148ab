//go:build linux

package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// rawQP is a raw packet QP of a node with its own CQ and memory for its frames.
type rawQP struct {
	n  *node
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

const (
	slot  = 2048
	slots = 512
)

// newRaw creates a QP in RTS with all receives posted.
func (n *node) newRaw() *rawQP {
	n.t.Helper()
	r := &rawQP{n: n}
	var err error
	r.cq, err = n.dev.CreateCQ(2*slots, nil)
	n.ok(err)
	pd, err := n.dev.AllocPD()
	n.ok(err)
	r.mr, err = pd.RegMR(make([]byte, (slots+1)*slot), verbs.AccessLocalWrite)
	n.ok(err)
	r.qp, err = pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RawPacket, SendCQ: r.cq, RecvCQ: r.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: slots, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 128}})
	n.ok(err)
	n.ok(r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1}, verbs.QPAttrState|verbs.QPAttrPort))
	for i := range slots {
		r.post(i)
	}
	n.ok(r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
	n.ok(r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
	return r
}

func (r *rawQP) post(i int) {
	r.n.t.Helper()
	r.n.ok(r.qp.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{r.mr.SGE(i*slot, slot)}}))
}

func (r *rawQP) flow(attr verbs.FlowAttr) {
	r.n.t.Helper()
	attr.Port = 1
	_, err := r.qp.CreateFlow(&attr)
	r.n.ok(err)
}

// next returns the next received frame, or nil if none comes within the time.
func (r *rawQP) next(within time.Duration) []byte {
	r.n.t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(within); ; {
		n, err := r.cq.Poll(wc[:])
		r.n.ok(err)
		if n == 0 {
			if time.Now().After(end) {
				return nil
			}
			time.Sleep(time.Millisecond)
			continue
		}
		if wc[0].Status != verbs.WCSuccess {
			r.n.t.Fatalf("completion %+v", wc[0])
		}
		if wc[0].Opcode == verbs.WCRecv {
			i := int(wc[0].WRID)
			frame := bytes.Clone(r.mr.Buf()[i*slot:][:wc[0].ByteLen])
			r.post(i)
			return frame
		}
	}
}

// send sends a frame from two pieces of memory.
func (r *rawQP) send(frame []byte) {
	r.n.t.Helper()
	copy(r.mr.Buf()[slots*slot:], frame)
	cut := min(14, len(frame))
	r.n.ok(r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{r.mr.SGE(slots*slot, cut), r.mr.SGE(slots*slot+cut, len(frame)-cut)}}))
}

// onTAP returns a node whose neighbour is the kernel of the test's namespace, at 10.7.0.9 on
// interface rnic0.
func onTAP(t *testing.T, plain bool) (*node, *netlink.Tuntap) {
	t.Helper()
	interfaces.TUN(t)
	interfaces.Namespace(t)
	l, err := tap.Open("rnic0", &tap.Config{MTU: 1500, NoOffloads: plain})
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := netlink.LinkByName("rnic0")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("10.7.0.9/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(kernel, addr); err != nil {
		t.Fatal(err)
	}
	return newNode(t, l, "10.7.0.1/24"), kernel.(*netlink.Tuntap)
}

// ping sends an ICMP echo request with n bytes of data from the kernel's stack, which resolves the
// address. It reports whether a reply with the same data arrived.
func ping(t *testing.T, to string, n int, within time.Duration) bool {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	echo := layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: uint16(n), Seq: 1}
	data := bytes.Repeat([]byte{0xa5}, n)
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, &echo, gopacket.Payload(data)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Sendto(fd, buf.Bytes(), 0, &syscall.SockaddrInet4{Addr: [4]byte(net.ParseIP(to).To4())}); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	for end := time.Now().Add(within); time.Now().Before(end); {
		left := syscall.NsecToTimeval(int64(max(time.Until(end), time.Millisecond)))
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &left); err != nil {
			t.Fatal(err)
		}
		got, _, err := syscall.Recvfrom(fd, answer, 0)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := answer[:got]; got == 28+n && p[20] == 0 && bytes.Equal(p[28:], data) {
			return true
		}
	}
	return false
}

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// arpFlow gives a QP a copy of ARP packets to the broadcast address or the interface.
var arpFlow = verbs.FlowAttr{Flags: verbs.FlowDontTrap, Specs: []verbs.FlowSpec{
	&verbs.FlowSpecEth{Val: verbs.FlowEthFilter{EtherType: 0x0806}, Mask: verbs.FlowEthFilter{EtherType: 0xffff}},
}}

// to4 is a flow of packets to an IPv4 address.
func to4(addr string) verbs.FlowAttr {
	return verbs.FlowAttr{Specs: []verbs.FlowSpec{
		&verbs.FlowSpecEth{Val: verbs.FlowEthFilter{EtherType: 0x0800}, Mask: verbs.FlowEthFilter{EtherType: 0xffff}},
		&verbs.FlowSpecIPv4{Val: verbs.FlowIPv4Filter{DstIP: [4]byte(net.ParseIP(addr).To4())},
			Mask: verbs.FlowIPv4Filter{DstIP: [4]byte{255, 255, 255, 255}}},
	}}
}

// arp builds an ARP packet over Ethernet.
func arp(op uint16, dst, src net.HardwareAddr, srcIP, dstIP string) []byte {
	b := append(append([]byte(nil), dst...), src...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, src...), net.ParseIP(srcIP).To4()...)
	target := dst
	if op == 1 {
		target = make([]byte, 6)
	}
	return append(append(b, target...), net.ParseIP(dstIP).To4()...)
}

// TestRawAnswersPing: a raw packet QP answers the kernel's pings to an address that the node does
// not have, while the node answers those to its own.
func TestRawAnswersPing(t *testing.T) {
	gate.System(t)
	const addr = "10.7.0.77"
	for _, tc := range []struct {
		name  string
		plain bool
	}{{"TAP", false}, {"TAP without offloads", true}} {
		t.Run(tc.name, func(t *testing.T) {
			n, _ := onTAP(t, tc.plain)
			if ping(t, addr, 8, 200*time.Millisecond) {
				t.Fatal("another host answers already")
			}
			r := n.newRaw()
			if f := r.next(50 * time.Millisecond); f != nil {
				t.Fatalf("without a flow it received %x", f)
			}
			r.flow(arpFlow)
			r.flow(to4(addr))
			stop, done := make(chan struct{}), make(chan struct{})
			defer func() { close(stop); <-done }()
			mac := n.host.NICs()[0].MAC()
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
					}
					f := r.next(10 * time.Millisecond)
					switch {
					case f == nil:
					case f[13] == 6 && f[21] == 1 && bytes.Equal(f[38:42], net.ParseIP(addr).To4()):
						r.send(arp(2, f[6:12], mac, addr, net.IP(f[28:32]).String()))
					case f[13] == 0 && f[23] == 1 && f[34] == 8:
						copy(f, f[6:12])
						copy(f[6:], mac)
						src := [4]byte(f[26:30])
						copy(f[26:], f[30:34])
						copy(f[30:], src[:])
						f[34] = 0 // echo reply: the checksum grows by the decrease of the type
						binary.BigEndian.PutUint16(f[36:], onesAdd(binary.BigEndian.Uint16(f[36:]), 0x0800))
						r.send(f)
					}
				}
			}()
			for _, size := range []int{0, 8, 1400, 1472} {
				if !ping(t, addr, size, 5*time.Second) {
					t.Errorf("no answer to an echo request of %d bytes", size)
				}
			}
			if !ping(t, "10.7.0.1", 64, 5*time.Second) {
				t.Error("the node does not answer any more")
			}
		})
	}
}

func onesAdd(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s + s>>16)
}

// TestRawSteering: the kernel answers an ARP request of a raw packet QP. The node does not get the
// packets of a normal flow, and the default flow gets those that neither takes. A sniffer gets all
// of them, and tshark finds nothing wrong.
func TestRawSteering(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	n, kernel := onTAP(t, false)
	mac := n.host.NICs()[0].MAC()
	sniffer := n.newRaw()
	sniffer.flow(verbs.FlowAttr{Type: verbs.FlowSniffer})

	asks := n.newRaw()
	asks.flow(arpFlow)
	asks.send(arp(1, broadcast[:], mac, "10.7.0.78", "10.7.0.9"))
	f := asks.next(5 * time.Second)
	if f == nil || f[21] != 2 || !bytes.Equal(f[6:12], kernel.HardwareAddr) {
		t.Fatalf("the kernel's answer to ARP: %x", f)
	}

	if !ping(t, "10.7.0.1", 32, 5*time.Second) {
		t.Fatal("the node does not answer")
	}
	steals := n.newRaw()
	flow := to4("10.7.0.1")
	flow.Port = 1
	stolen, err := steals.qp.CreateFlow(&flow)
	n.ok(err)
	if ping(t, "10.7.0.1", 33, 300*time.Millisecond) {
		t.Error("the node answers packets that were steered away from it")
	}
	if f := steals.next(time.Second); f == nil || len(f) != 14+28+33 {
		t.Errorf("steered: %x", f)
	}
	n.ok(stolen.Close())
	if !ping(t, "10.7.0.1", 34, 5*time.Second) {
		t.Error("the node does not answer after the flow was closed")
	}

	rest := n.newRaw()
	rest.flow(verbs.FlowAttr{Type: verbs.FlowAllDefault})
	strange := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: kernel.Index, IP: net.ParseIP("10.7.0.99"), HardwareAddr: strange,
		State: netlink.NUD_PERMANENT}); err != nil {
		t.Fatal(err)
	}
	ping(t, "10.7.0.99", 35, 10*time.Millisecond)
	for {
		f := rest.next(5 * time.Second)
		if f == nil {
			t.Fatal("no packet reached the default flow")
		}
		if f[0]&1 == 0 {
			if !bytes.Equal(f[:6], strange) {
				t.Errorf("the default flow has a frame to %x", f[:6])
			}
			break
		}
	}
	if !ping(t, "10.7.0.1", 36, 5*time.Second) {
		t.Error("the default flow takes the node's packets")
	}
	checkSniffed(t, tshark, sniffer)
}

// checkSniffed makes tshark dissect the frames of a sniffer during the echoes of TestRawSteering.
func checkSniffed(t *testing.T, tshark string, sniffer *rawQP) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sniffed.pcap")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(out)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for f := sniffer.next(100 * time.Millisecond); f != nil; f = sniffer.next(100 * time.Millisecond) {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(f), Length: len(f)}, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command(tshark, "-n", "-o", "ip.check_checksum:TRUE", "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "icmp.type", "-e", "arp.opcode", "-e", "_ws.malformed", "-e", "icmp.checksum.status", "-e", "ip.checksum.status").Output()
	if err != nil {
		t.Fatal(err)
	}
	requests, replies, arps := 0, 0, 0
	for line := range strings.Lines(string(text)) {
		v := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		switch {
		case v[2] != "" || v[3] == "0" || v[4] == "0":
			t.Errorf("tshark finds a packet malformed, or a checksum wrong: %q", v)
		case v[0] == "8":
			requests++
		case v[0] == "0":
			replies++
		case v[1] != "":
			arps++
		}
	}
	// Requests of 32 to 36 bytes; replies from the node to 32, 34 and 36. ARP from the raw QP and
	// the reply, at least.
	if requests != 5 || replies != 3 || arps < 2 {
		t.Errorf("the sniffer saw %d echo requests, %d replies and %d of ARP", requests, replies, arps)
	}
}
