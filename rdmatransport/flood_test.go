package rdmatransport_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	roce "github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// requestFrame is a frame with a REQ from an address to 10.0.0.1.
func requestFrame(b []byte, to [6]byte, src netip.Addr, port uint16, id uint32) []byte {
	dst := netip.MustParseAddr("10.0.0.1")
	req := mad.REQ{
		LocalCommID: id, ServiceID: mad.ServiceID(uint16(rdmacm.TCP), port), LocalCAGUID: uint64(id) << 8, LocalQPN: id&0xffff + 0x10000,
		ResponderResources: 1, InitiatorDepth: 1, RemoteResponseTimeout: 20, LocalResponseTimeout: 20, RetryCount: 7, PKey: roce.DefaultPKey,
		MTU: 3, MaxCMRetries: 15, RNRRetryCount: 7,
		Primary:     mad.Path{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: src.As16(), RemoteGID: dst.As16(), HopLimit: 64, AckTimeout: 19},
		PrivateData: (&mad.IPCM{Src: src, SrcPort: 40000, Dst: dst}).Append(nil),
	}
	var m [mad.Size]byte
	mad.Encode(&m, uint64(id), &req)
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.UDSendOnly, PKey: roce.DefaultPKey, DestQP: mad.QPN, PSN: id & 0xffffff}, DETH: roce.DETH{QKey: mad.QKey, SrcQP: mad.QPN}, Payload: m[:]}
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

// waiting is how many of the requests that were sent a device has not received.
func waiting(dev *verbs.Device, sent int64) int64 {
	return sent - int64(dev.HWCounters()["cm_rx_msgs_req"])
}

// TestConnectDuringFlood: while REQs from random sources come at 100,000 a second, or as many as
// the machine can do, of sources behind a router and of the network itself, peers that are there
// connect, and what is kept of the others is bounded.
func TestConnectDuringFlood(t *testing.T) {
	for name, base := range map[string][4]byte{"behind a router": {172, 16, 0, 0}, "of the network": {10, 0, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			lan, err := pipe.New()
			ok(t, err)
			var mac [6]byte
			port := lan.Port()
			copy(mac[:], port.MAC())
			host, err := netstack.New(port, netstack.Addr("10.0.0.1/8"), netstack.Gateway("10.255.255.254"))
			ok(t, err)
			router, err := netstack.New(lan.Port(), netstack.Addr("10.255.255.254/8"))
			ok(t, err)
			peer, err := netstack.New(lan.Port(), netstack.Addr("10.0.0.2/8"))
			ok(t, err)
			dev, err := rdmatransport.Open(host)
			ok(t, err)
			from, err := rdmatransport.Open(peer)
			ok(t, err)
			defer func() {
				ok(t, dev.Close())
				ok(t, from.Close())
				for _, h := range []*netstack.Host{host, router, peer} {
					ok(t, h.Close())
				}
			}()
			l, err := rdmacm.Listen(dev, ":7471", &rdmacm.Config{Backlog: 128})
			ok(t, err)
			defer func() { ok(t, l.Close()) }()

			third := lan.Port()
			defer third.Close()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var sent atomic.Int64
			var flooding sync.WaitGroup
			flooding.Go(func() {
				const burst = 100
				rnd := rand.New(rand.NewPCG(1, 2))
				frames, memory := make([]link.Frame, burst), make([]byte, burst*512)
				began := time.Now()
				for n := 0; ctx.Err() == nil; n += burst {
					for i := range frames {
						a := base
						binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|rnd.Uint32()&0xfffff|0x40000)
						frames[i].Data = requestFrame(memory[i*512:(i+1)*512], mac, netip.AddrFrom4(a), 7471, rnd.Uint32())
					}
					if _, err := third.Write(frames); err != nil {
						return
					}
					sent.Add(burst)
					// The link drops what the machine does not come to, be it of the flood or not.
					for waiting(dev, sent.Load()) > 2000 && ctx.Err() == nil {
						time.Sleep(50 * time.Microsecond)
					}
					if ahead := time.Duration(n)*time.Second/100_000 - time.Since(began); ahead > 0 {
						time.Sleep(ahead)
					}
				}
			})
			for sent.Load() < 50_000 { // all places are taken
				time.Sleep(time.Millisecond)
			}
			before, at := sent.Load(), time.Now()
			var slowest time.Duration
			for range 5 {
				within, cancel := context.WithTimeout(ctx, 20*time.Second)
				began := time.Now()
				accepted := make(chan *rdmacm.Conn, 1)
				go func() {
					c, err := l.Accept(within)
					if err != nil {
						t.Error(err)
					}
					accepted <- c
				}()
				c, err := rdmacm.Dial(within, from, "10.0.0.1:7471", nil)
				if err != nil {
					t.Fatal(err)
				}
				slowest = max(slowest, time.Since(began))
				ok(t, c.Close())
				ok(t, (<-accepted).Close())
				cancel()
			}
			rate := float64(sent.Load()-before) / time.Since(at).Seconds()
			stop()
			flooding.Wait()
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			c := dev.HWCounters()
			t.Logf("%.0f REQs a second; the slowest connect took %v; %d QPs, %d MiB of heap; held %d, dropped %d", rate, slowest, dev.Resources().QP, m.HeapAlloc>>20, c["cm_rx_held"], c["cm_rx_dropped"])
			within := 2 * time.Second
			if rate < 50_000 { // others take the machine's time, and the peer's as well
				within = 10 * time.Second
			}
			if slowest > within {
				t.Errorf("a connect took %v", slowest)
			}
		})
	}
}
