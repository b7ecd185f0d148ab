package trace

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// ethernet returns the frame of a RoCEv2 packet over IPv4.
func ethernet(src, dst netip.Addr, id uint16, p *wire.Packet) []byte {
	b := make([]byte, 14+20+8+p.Size())
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0})
	ip := b[14:]
	copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], id)
	s, d := src.As4(), dst.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	checksum.PutIPv4(ip[:20])
	binary.BigEndian.PutUint16(ip[20:], 50000)
	binary.BigEndian.PutUint16(ip[22:], port)
	binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-20))
	p.Encode(ip[:28], ip[28:])
	return b
}

var alice, bob = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// transfer returns a capture of messages on a number of QPs. Each has n packets of size bytes and
// an acknowledgement.
func transfer(t testing.TB, qps, messages, n, size int) []byte {
	t.Helper()
	var file bytes.Buffer
	w := pcapgo.NewWriterNanos(&file)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1700000000, 0)
	var ids [2]uint16
	write := func(side int, p *wire.Packet) {
		src, dst := alice, bob
		if side == 1 {
			src, dst = bob, alice
		}
		ids[side]++
		b := ethernet(src, dst, ids[side], p)
		now = now.Add(time.Microsecond)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: now, CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
	}
	payload := make([]byte, size)
	psn := make([]uint32, qps)
	for m := range messages {
		q := m % qps
		for i := range n {
			op := wire.RCSendMiddle
			switch {
			case n == 1:
				op = wire.RCSendOnly
			case i == 0:
				op = wire.RCSendFirst
			case i == n-1:
				op = wire.RCSendLast
			}
			write(0, &wire.Packet{BTH: wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: uint32(0x100 + q),
				PSN: wire.PSNAdd(uint32(q)<<16, psn[q]), AckReq: i == n-1}, Payload: payload})
			psn[q]++
		}
		write(1, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PKey: wire.DefaultPKey, DestQP: uint32(0x200 + q),
			PSN: wire.PSNAdd(uint32(q)<<16, psn[q]-1)},
			AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: uint32(m/qps + 1)}})
	}
	return file.Bytes()
}

func benchmark(b *testing.B, capture []byte, packets int) {
	b.SetBytes(int64(len(capture)))
	b.ReportAllocs()
	for b.Loop() {
		src, err := open(bytes.NewReader(capture))
		if err != nil {
			b.Fatal(err)
		}
		a, err := (&Command{Stats: true}).trace(context.Background(), src, io.Discard, "test")
		if err != nil || a.counts.Packets != packets || a.counts.Wrong+a.counts.Doubtful != 0 {
			b.Fatal(err, a.counts)
		}
	}
	b.ReportMetric(float64(packets)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

// BenchmarkLarge: statistics of packets of 4 KiB. The goal is 1 GB/s on one core.
func BenchmarkLarge(b *testing.B) { benchmark(b, transfer(b, 8, 1000, 16, 4096), 17000) }

// BenchmarkSmall: statistics of packets of 8 bytes and their acknowledgements. The goal is a
// million packets a second on one core.
func BenchmarkSmall(b *testing.B) { benchmark(b, transfer(b, 8, 20000, 1, 8), 40000) }

// TestMemory: memory does not grow with the length of a capture or its number of QPs and
// connections.
func TestMemory(t *testing.T) {
	small, large := transfer(t, 4, 1000, 4, 64), transfer(t, 4, 10000, 4, 64)
	var kept [2]uint64
	for i, capture := range [][]byte{small, large} {
		src, err := open(bytes.NewReader(capture))
		if err != nil {
			t.Fatal(err)
		}
		a, err := (&Command{Stats: true}).trace(context.Background(), src, io.Discard, "test")
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		kept[i] = m.HeapAlloc
		runtime.KeepAlive(a)
	}
	if kept[1] > kept[0]+1<<20 {
		t.Errorf("%d bytes are kept of a capture of %d, %d of one of %d", kept[0], len(small), kept[1], len(large))
	}

	// Each packet is of another QP, and none is ever answered.
	a := newAnalysis(discard{}, false)
	for i := range maxFlows * 2 {
		f := &a.frame
		f.number, f.time = i+1, int64(i)*1000
		f.decode(layers.LinkTypeEthernet, ethernet(alice, bob, uint16(i+1),
			&wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: uint32(i), PSN: uint32(i)}}))
		a.look(f)
	}
	if len(a.flows) > maxFlows || len(a.unpaired) > 1 || len(a.unpaired[pair{alice, bob}]) > maxFlows {
		t.Errorf("%d flows are kept, the limit is %d", len(a.flows), maxFlows)
	}
}

// discard is an output that drops all results.
type discard struct{}

func (discard) packet(*analysis, *event)            {}
func (discard) late(*analysis, *flow, finding)      {}
func (discard) statistics(*analysis, *flow)         {}
func (discard) streamStatistics(*analysis, *stream) {}

// FuzzCapture: any file is read to its end or refused, and its packets are printed and drawn.
func FuzzCapture(f *testing.F) {
	for _, capture := range captured(f) {
		f.Add(capture[:min(len(capture), 4096)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		src, err := open(bytes.NewReader(b))
		if err != nil {
			return
		}
		p := &printer{out: bufio.NewWriter(io.Discard), packets: true, chart: new(charts)}
		a := newAnalysis(p, true)
		_ = a.read(src, func() bool { return false }) // an error if it is refused
		p.summary(a)
		if err := p.chart.draw(io.Discard, true, "fuzz"); err != nil {
			t.Fatal(err)
		}
	})
}
