package rdmatransport_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// requestFrame builds a frame with a REQ from an address to 10.0.0.1.
func requestFrame(b []byte, to [6]byte, src netip.Addr, port uint16, id uint32) []byte {
	dst := netip.MustParseAddr("10.0.0.1")
	req := mad.REQ{
		LocalCommID: id, ServiceID: mad.ServiceID(uint16(rdmacm.TCP), port), LocalCAGUID: uint64(id) << 8, LocalQPN: id&0xffff + 0x10000,
		ResponderResources: 1, InitiatorDepth: 1, RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
		RetryCount: 7, PKey: wire.DefaultPKey,
		MTU: 3, MaxCMRetries: 15, RNRRetryCount: 7,
		Primary: mad.Path{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: src.As16(), RemoteGID: dst.As16(),
			HopLimit: 64, AckTimeout: 19},
		PrivateData: (&mad.IPCM{Src: src, SrcPort: 40000, Dst: dst}).Append(nil),
	}
	var m [mad.Size]byte
	mad.Encode(&m, uint64(id), &req)
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: mad.QPN, PSN: id & 0xffffff},
		DETH: wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN}, Payload: m[:]}
	const headers = 14 + 20 + 8
	b = b[:headers+p.Size()]
	copy(b, to[:])
	copy(b[6:], []byte{2, 0, 0, 0, 9, 9})
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip, udp := b[14:34], b[34:headers]
	copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0})
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	stack.PutLengths(b[14:headers], p.Size())
	binary.BigEndian.PutUint16(ip[10:], 0)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(udp, 50000)
	binary.BigEndian.PutUint16(udp[2:], stack.RoCEPort)
	p.Encode(b[14:headers], b[headers:])
	return b
}

// TestConnectDuringFlood floods a listener with 100,000 REQs a second from random sources, which
// are behind a router or on the network itself. A real peer connects without a repeated message,
// and the state kept for the flood is bounded. Time is virtual.
func TestConnectDuringFlood(t *testing.T) {
	for name, base := range map[string][4]byte{"behind a router": {172, 16, 0, 0}, "of the network": {10, 0, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := connectDuringFlood(t, base, 0)
				t.Logf("%+v", f)
				if f.slowest > 200*time.Millisecond { // a message is repeated after seconds
					t.Errorf("a connect took %v", f.slowest)
				}
				if f.qps > 128+1 || f.held < uint64(f.sent)*9/10 {
					t.Errorf("%d QPs, want at most those of the backlog and the peer; %d of %d REQs were held", f.qps, f.held, f.sent)
				}
			})
		})
	}
}

// BenchmarkConnectDuringFlood is TestConnectDuringFlood in real time, after 10 s of the flood. It
// reports the number of REQs per second, and the time of the slowest of four connects.
func BenchmarkConnectDuringFlood(b *testing.B) {
	for range b.N {
		f := connectDuringFlood(b, [4]byte{172, 16, 0, 0}, 10*time.Second)
		b.ReportMetric(float64(f.sent)/f.lasted.Seconds(), "REQs/s")
		b.ReportMetric(float64(f.slowest.Milliseconds()), "ms/connect")
		b.ReportMetric(float64(f.heap)/(1<<20), "MiB-more")
	}
}

// flood is the outcome of a flood of REQs.
type flood struct {
	sent    int           // REQs
	lasted  time.Duration // how long they were sent
	held    uint64        // REQs beyond the backlog
	slowest time.Duration // connect
	qps     int           // left at the end
	heap    int           // growth of the heap in bytes
}

// connectDuringFlood connects four times after some time of a flood whose sources begin with base.
func connectDuringFlood(t testing.TB, base [4]byte, after time.Duration) (f flood) {
	lan := must(pipe.New(nil))(t)
	var mac [6]byte
	port := lan.Port()
	copy(mac[:], port.MAC())
	host := must(netstack.New(port, &netstack.Config{Addrs: []string{"10.0.0.1/8"}, Gateways: []string{"10.255.255.254"}}))(t)
	router := must(netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.255.255.254/8"}}))(t)
	// A round trip to the peer takes 20 ms: 2000 REQs.
	far := must(impair.New(lan.Port(), &impair.Config{In: impair.Direction{Delay: 10 * time.Millisecond},
		Out: impair.Direction{Delay: 10 * time.Millisecond}}))(t)
	peer := must(netstack.New(far, &netstack.Config{Addrs: []string{"10.0.0.2/8"}}))(t)
	dev, from := must(rdmatransport.Open(host, nil))(t), must(rdmatransport.Open(peer, nil))(t)
	defer func() {
		ok(t, dev.Close())
		ok(t, from.Close())
		for _, h := range []*netstack.Host{host, router, peer} {
			ok(t, h.Close())
		}
	}()
	l := must(rdmacm.Listen(dev, ":7471", &rdmacm.Config{Backlog: 128}))(t)
	defer func() { ok(t, l.Close()) }()

	third := lan.Port()
	defer third.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const burst = 100
	heap := heapInUse()
	taken := make(chan struct{})
	var flooding sync.WaitGroup
	flooding.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		frames, memory := make([]link.Frame, burst), make([]byte, burst*512)
		began := time.Now()
		defer func() { f.lasted = time.Since(began) }()
		for ; ctx.Err() == nil; time.Sleep(time.Duration(f.sent)*time.Second/100_000 - time.Since(began)) {
			for i := range frames {
				a := base
				binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|rnd.Uint32()&0xfffff|0x40000)
				frames[i].Data = requestFrame(memory[i*512:(i+1)*512], mac, netip.AddrFrom4(a), 7471, rnd.Uint32())
			}
			if _, err := third.Write(frames); err != nil {
				t.Error(err)
				return
			}
			// More than a listener accepts of unvalidated peers.
			if f.sent += burst; f.sent == 2000 {
				close(taken)
			}
		}
	})
	<-taken
	time.Sleep(after)
	connects := 4
	if raceEnabled {
		connects = 1
	}
	for range connects {
		within, cancel := context.WithTimeout(ctx, time.Minute)
		began := time.Now()
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			c, err := l.Accept(within)
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		c := must(rdmacm.Dial(within, from, "10.0.0.1:7471", nil))(t)
		f.slowest = max(f.slowest, time.Since(began))
		ok(t, c.Close())
		ok(t, (<-accepted).Close())
		cancel()
	}
	stop()
	flooding.Wait()
	f.qps, f.held = dev.Resources().QP, must(dev.HWCounters())(t)["cm_rx_held"]
	f.heap = heapInUse() - heap
	return f
}
