package netstack_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	gudp "gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

func must(t testing.TB, err tcpip.Error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host returns a small gVisor stack 10.0.0.n on l. TCP keeps goroutines that synctest cannot
// observe.
func host(t testing.TB, l link.Link, n byte, transports ...gstack.TransportProtocolFactory) (*gstack.Stack, *netstack.Endpoint) {
	t.Helper()
	s := gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: append(transports, icmp.NewProtocol4, icmp.NewProtocol6, gudp.NewProtocol),
	})
	e := netstack.NewEndpoint(l)
	must(t, s.CreateNICWithOptions(1, e, gstack.NICOptions{QDisc: e.QDisc()}))
	must(t, s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4([4]byte{10, 0, 0, n}),
			PrefixLen: 24}}, gstack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s, e
}

func addr(n byte, port uint16) *tcpip.FullAddress {
	return &tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, n}), Port: port}
}

func TestEndpointPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(pipe.Switch)
		a, _ := host(t, sw.Port(), 1)
		b, _ := host(t, sw.Port(), 2)
		var wq waiter.Queue
		ep, err := a.NewEndpoint(icmp.ProtocolNumber4, ipv4.ProtocolNumber, &wq)
		must(t, err)
		ready, came := waiter.NewChannelEntry(waiter.ReadableEvents)
		wq.EventRegister(&ready)
		must(t, ep.Connect(*addr(2, 0)))
		request := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize+5))
		request.SetType(header.ICMPv4Echo)
		copy(request.Payload(), "hello")
		if _, err := ep.Write(bytes.NewReader(request), tcpip.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-came:
		case <-time.After(5 * time.Second):
			t.Fatal("no reply to the ping")
		}
		var reply bytes.Buffer
		if _, err := ep.Read(&reply, tcpip.ReadOptions{}); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(reply.Bytes(), []byte("hello")) {
			t.Errorf("reply %q", reply.Bytes())
		}
		ep.Close()
		a.Destroy()
		b.Destroy()
	})
}

// TestFrameHandler checks that the handler gets frames to the host before gVisor, and can withhold
// them.
func TestFrameHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(pipe.Switch)
		port := sw.Port()
		s, e := host(t, port, 1)
		peer := sw.Port()
		var seen int
		keep := true
		e.SetFrameHandler(func(f *link.Frame) bool {
			seen++
			return keep
		})
		delivered := func() int { return int(s.Stats().NICs.Rx.Packets.Value()) }
		send := func(dst []byte) {
			f := append(append(bytes.Clone(dst), peer.MAC()...), 0x88, 0xb5, 1, 2, 3)
			if _, err := peer.Write([]link.Frame{{Data: f}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send(port.MAC())
		send([]byte{255, 255, 255, 255, 255, 255})
		send([]byte{0x33, 0x33, 0, 0, 0, 1})
		if seen != 3 || delivered() != 0 {
			t.Errorf("handler saw %d frames, gVisor %d; want 3 and 0", seen, delivered())
		}
		keep = false
		send(port.MAC())
		if seen != 4 || delivered() != 1 {
			t.Errorf("handler saw %d frames, gVisor %d; want 4 and 1", seen, delivered())
		}
		e.SetFrameHandler(nil)
		send(port.MAC())
		if seen != 4 || delivered() != 2 {
			t.Errorf("handler saw %d frames, gVisor %d; want 4 and 2", seen, delivered())
		}
		s.Destroy()
		if _, err := port.Write(nil); err == nil {
			t.Error("destroying the stack left the link open")
		}
	})
}

// script is a link whose reception the test controls and which discards written frames.
type script struct {
	link.Link
	recv link.Receiver
}

func (s *script) Write(frames []link.Frame) (int, error) { return len(frames), nil }

func (s *script) Attach(r link.Receiver) { s.recv = r }
func (s *script) Close() error           { return nil }

// TestForeignFramesAreFiltered checks that frames to other hosts, and frames too short for an
// Ethernet header, reach neither the handler nor gVisor.
func TestForeignFramesAreFiltered(t *testing.T) {
	l := &script{Link: new(pipe.Switch).Port()}
	s, e := host(t, l, 1)
	defer s.Destroy()
	e.SetFrameHandler(func(f *link.Frame) bool { t.Errorf("handler got %x", f.Data); return false })
	l.recv([]link.Frame{{Data: append([]byte{2, 1, 1, 1, 1, 1}, make([]byte, 20)...)}, {Data: l.MAC()}, {}})
	if n := s.Stats().NICs.Rx.Packets.Value(); n != 0 {
		t.Errorf("gVisor got %d packets", n)
	}
}

// TestTagged checks that a host in no VLAN gets only tagged frames with VLAN ID 0, and gets them
// without the tag.
func TestTagged(t *testing.T) {
	l := &script{Link: new(pipe.Switch).Port()}
	s, e := host(t, l, 1)
	defer s.Destroy()
	var got []link.Frame
	e.SetFrameHandler(func(f *link.Frame) bool { got = append(got, *f); return false })
	frame := func(tag ...byte) link.Frame {
		return link.Frame{Data: append(append(append(bytes.Clone(l.MAC()), l.MAC()...), tag...), 0x88, 0xb5, 1, 2, 3)}
	}
	l.recv([]link.Frame{frame(0x81, 0, 0, 1), frame(0x81, 0, 0x60, 0), frame(0x88, 0xa8, 0, 0), frame(0x81, 0, 0xff, 0xff), frame()})
	if len(got) != 2 || got[0].TCI != 0x6000 || got[1].TCI != 0 || !bytes.Equal(got[0].Data, frame().Data) ||
		!bytes.Equal(got[1].Data, frame().Data) {
		t.Errorf("got %+v", got)
	}
	if n := s.Stats().NICs.Rx.Packets.Value(); n != 2 {
		t.Errorf("gVisor got %d packets", n)
	}
}

// TestBadChecksumIsDropped checks that the endpoint verifies checksums, because gVisor does not on
// a link with checksum offload.
func TestBadChecksumIsDropped(t *testing.T) {
	l := &script{Link: new(pipe.Switch).Port()}
	s, _ := host(t, l, 1)
	defer s.Destroy()
	conn, err := gonet.DialUDP(s, addr(1, 9000), nil, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	packet := func() link.Frame {
		d := make([]byte, 14+20+8+4)
		copy(d, l.MAC())
		d[12] = 8
		ip := header.IPv4(d[14:])
		ip.Encode(&header.IPv4Fields{TotalLength: 32, TTL: 64, Protocol: 17,
			SrcAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 2}), DstAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1})})
		ip.SetChecksum(^ip.CalculateChecksum())
		u := header.UDP(d[34:])
		u.Encode(&header.UDPFields{SrcPort: 1, DstPort: 9000, Length: 12})
		copy(d[42:], "data")
		sum := header.PseudoHeaderChecksum(17, ip.SourceAddress(), ip.DestinationAddress(), 12)
		u.SetChecksum(sum)
		return link.Frame{Data: d, NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
	}
	received := func() uint64 { return s.Stats().UDP.PacketsReceived.Value() }
	for _, c := range []struct {
		name   string
		change func(*link.Frame)
		want   uint64
	}{
		{"partial", func(*link.Frame) {}, 1},
		{"complete", (*link.Frame).FinishChecksum, 1},
		{"complete, not guaranteed", func(f *link.Frame) { f.FinishChecksum(); f.ChecksumValid = false }, 1},
		{"none", func(f *link.Frame) { f.NeedsChecksum = false; clear(f.Data[40:42]) }, 1},
		{"wrong, guaranteed", func(f *link.Frame) { f.NeedsChecksum = false; f.ChecksumValid = true; f.Data[45]++ }, 1},
		{"wrong", func(f *link.Frame) { f.FinishChecksum(); f.ChecksumValid = false; f.Data[45]++ }, 0},
		{"wrong IPv4 header", func(f *link.Frame) { f.FinishChecksum(); f.ChecksumValid = false; f.Data[18]++ }, 0},
		{"IPv4 header beyond the frame", func(f *link.Frame) { f.FinishChecksum(); f.ChecksumValid = false; f.Data[14] = 0x4f }, 0},
		{"no IP header", func(f *link.Frame) { *f = link.Frame{Data: f.Data[:14]} }, 0},
	} {
		f := packet()
		c.change(&f)
		before := received()
		l.recv([]link.Frame{f})
		if got := received() - before; got != c.want {
			t.Errorf("%s: %d datagrams reached UDP, want %d", c.name, got, c.want)
		}
	}
}

// TestTCPUsesSuperframes checks that a bulk transfer between two stacks arrives intact, in
// superframes in both directions.
func TestTCPUsesSuperframes(t *testing.T) {
	sw, err := pipe.New(&pipe.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	pa, pb := sw.Port(), sw.Port()
	a, _ := host(t, pa, 1, tcp.NewProtocol)
	b, eb := host(t, pb, 2, tcp.NewProtocol)
	defer a.Destroy()
	defer b.Destroy()
	largest := 0
	eb.SetFrameHandler(func(f *link.Frame) bool {
		if f.Segmentation == link.TCPv4 {
			largest = max(largest, len(f.Data))
		}
		return false
	})
	l, err := gonet.ListenTCP(b, *addr(2, 5000), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i ^ i>>11)
	}
	got := make(chan []byte)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		all, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		c.Close()
		got <- all
	}()
	c, err := gonet.DialTCP(a, *addr(2, 5000), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if !bytes.Equal(<-got, data) {
		t.Error("the data arrived modified")
	}
	eb.SetFrameHandler(nil)
	if largest < 20000 {
		t.Errorf("largest TCP frame %d bytes: no superframes", largest)
	}
}

func TestEndpointProperties(t *testing.T) {
	sw := new(pipe.Switch)
	p := sw.Port()
	e := netstack.NewEndpoint(p)
	if e.Link() != link.Link(p) || e.MTU() != pipe.DefaultMTU || e.LinkAddress() != tcpip.LinkAddress(p.MAC()) {
		t.Error("Link, MTU or LinkAddress differs from the link's")
	}
	e.SetMTU(1500)
	if e.MTU() != 1500 {
		t.Error("SetMTU had no effect")
	}
	e.SetMTU(9000)
	if e.MTU() != pipe.DefaultMTU {
		t.Error("SetMTU raised the MTU over the link's")
	}
	capabilities := gstack.LinkEndpointCapabilities(gstack.CapabilityRXChecksumOffload | gstack.CapabilityResolutionRequired)
	if e.SupportedGSO() != gstack.HostGSOSupported || e.Capabilities() != capabilities {
		t.Error("offloads of the link are not announced")
	}
	plain := netstack.NewEndpoint(&script{Link: bare{p}})
	if plain.SupportedGSO() != gstack.GSONotSupported || plain.Capabilities() != gstack.CapabilityResolutionRequired {
		t.Error("offloads announced that the link lacks")
	}
	if plain.ARPHardwareType() != header.ARPHardwareEther || plain.MaxHeaderLength() != 14 {
		t.Error("not an Ethernet endpoint")
	}
}

// bare is a link without offloads.
type bare struct{ link.Link }

func (bare) Offloads() link.Offloads { return link.Offloads{} }

func BenchmarkEndpointReceive(b *testing.B) {
	l := &script{Link: new(pipe.Switch).Port()}
	s, e := host(b, l, 1)
	defer s.Destroy()
	n := 0
	e.SetFrameHandler(func(f *link.Frame) bool { n += int(binary.BigEndian.Uint16(f.Data[12:])); return true })
	d := make([]byte, 100)
	copy(d, l.MAC())
	frames := []link.Frame{{Data: d}}
	b.ReportAllocs()
	for b.Loop() {
		l.recv(frames)
	}
}

// BenchmarkEndpointWrite measures a packet from gVisor to the link.
func BenchmarkEndpointWrite(b *testing.B) {
	e := netstack.NewEndpoint(&script{Link: new(pipe.Switch).Port()})
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: 54, Payload: buffer.MakeWithData(make([]byte, 60000))})
	pkt.TransportHeader().Push(20)
	pkt.NetworkHeader().Push(20)
	e.AddHeader(pkt)
	pkt.GSOOptions = gstack.GSO{Type: gstack.GSOTCPv4, NeedsCsum: true, CsumOffset: 16, MSS: 1460, L3HdrLen: 20}
	q := e.QDisc()
	b.ReportAllocs()
	for b.Loop() {
		if err := q.WritePacket(pkt); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzReceive checks that no frame, with any description, makes the endpoint panic.
func FuzzReceive(f *testing.F) {
	l := &script{Link: new(pipe.Switch).Port()}
	s, _ := host(f, l, 1)
	f.Cleanup(s.Destroy)
	tcp := linktest.TCPSuperframe(300, 100)
	f.Add(tcp.Data, false)
	f.Add(append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 0, 17}, make([]byte, 100)...), true)
	f.Fuzz(func(t *testing.T, data []byte, vouched bool) {
		if len(data) >= 6 {
			copy(data, l.MAC())
		}
		l.recv([]link.Frame{{Data: data, ChecksumValid: vouched}})
	})
}
