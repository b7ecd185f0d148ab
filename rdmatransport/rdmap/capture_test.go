package rdmap_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/tests/captures"
)

// direction is one half of a TCP connection.
type direction struct {
	network, transport gopacket.Flow
}

func (d direction) reverse() direction {
	return direction{d.network.Reverse(), d.transport.Reverse()}
}

// halves returns the streams of a file, each with the segments' bytes in the order of their
// sequence numbers.
func halves(t *testing.T, file string) map[direction][]byte {
	t.Helper()
	segments := make(map[direction][]*layers.TCP)
	start := make(map[direction]uint32)
	for p := range captures.Packets(t, file) {
		tcp, ok := p.TransportLayer().(*layers.TCP)
		if !ok {
			continue
		}
		d := direction{p.NetworkLayer().NetworkFlow(), tcp.TransportFlow()}
		if tcp.SYN {
			start[d] = tcp.Seq + 1
		}
		if len(tcp.Payload) > 0 {
			segments[d] = append(segments[d], tcp)
		}
	}
	streams := make(map[direction][]byte)
	for d, list := range segments {
		first, ok := start[d]
		if !ok {
			t.Fatalf("%v: no SYN", d.transport)
		}
		slices.SortStableFunc(list, func(a, b *layers.TCP) int { return cmp.Compare(a.Seq-first, b.Seq-first) })
		var stream []byte
		for _, s := range list {
			at := int(s.Seq - first)
			if at > len(stream) {
				t.Fatalf("%v: bytes %d to %d are missing", d.transport, len(stream), at)
			}
			if again := len(stream) - at; again < len(s.Payload) {
				stream = append(stream, s.Payload[again:]...)
			}
		}
		streams[d] = stream
	}
	return streams
}

// reader follows one direction. It parses the stream and encodes it again.
type reader struct {
	t      *testing.T
	seen   map[rdmap.Opcode]int
	sender mpa.Sender
	again  []byte // the stream as this implementation sends it
	queues [rdmap.Queues]ddp.Queue
	fpdus  int
}

func (r *reader) ULPDU(b []byte) error {
	t := r.t
	r.fpdus++
	var (
		again   = make([]byte, len(b))
		op      rdmap.Opcode
		message []byte
		err     error
	)
	if ddp.IsTagged(b) {
		h, payload, err := ddp.ParseTagged(b)
		if err != nil {
			return err
		}
		if op, err = rdmap.ParseControl(h.RsvdULP); err != nil {
			return err
		}
		if err := op.CheckTagged(); err != nil {
			t.Errorf("%v in a tagged segment", op)
		}
		h.Encode(again)
		copy(again[ddp.TaggedLen:], payload)
	} else {
		h, payload, err := ddp.ParseUntagged(b)
		if err != nil {
			return err
		}
		if op, err = rdmap.ParseControl(h.RsvdULP); err != nil {
			return err
		}
		if err := op.CheckUntagged(h.QN); err != nil {
			t.Fatalf("%v on queue %d", op, h.QN)
		}
		if _, err := r.queues[h.QN].Accept(&h, len(payload)); err != nil {
			return err
		}
		message = payload
		h.Encode(again)
		copy(again[ddp.UntaggedLen:], payload)
	}
	r.seen[op]++
	switch op {
	case rdmap.ReadRequest:
		var h rdmap.ReadRequestHeader
		if h, err = rdmap.ParseReadRequest(message); err == nil {
			h.Encode(again[ddp.UntaggedLen:])
		}
	case rdmap.Terminate:
		var h rdmap.TerminateHeader
		if h, err = rdmap.ParseTerminate(message); err == nil {
			h.Encode(again[ddp.UntaggedLen:])
		}
		t.Logf("Terminate: %v (Swapped %v)", h.Cause, h.Swapped)
	}
	if err != nil {
		return err
	}
	at := len(r.again)
	r.again = append(r.again, make([]byte, r.sender.Size(len(again)))...)
	r.sender.Begin(r.again[at:], len(again))
	r.sender.Add(again)
	r.sender.End()
	return nil
}

// TestCaptures checks captures of siw, however the stream is cut. All bytes parse, each segment is
// the one that its queue expects, and encoding gives the same bytes.
func TestCaptures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pcap.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in testdata: %v", err)
	}
	all := make(map[rdmap.Opcode]int)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			streams := halves(t, file)
			for d, stream := range streams {
				request, n, err := mpa.Parse(stream)
				if errors.Is(err, mpa.ErrKey) || err == mpa.ErrShort || request.Reply {
					continue // the tools' own connection, or the other direction
				}
				if err != nil {
					t.Fatal(err)
				}
				answer := streams[d.reverse()]
				reply, m, err := mpa.Parse(answer)
				if err != nil || !reply.Reply {
					t.Fatalf("reply %+v, error %v", reply, err)
				}
				again := make([]byte, n+m)
				if k, err := request.Encode(again); k != n || err != nil || !bytes.Equal(again[:n], stream[:n]) {
					t.Fatalf("request encodes to %x, %v; want %x", again[:n], err, stream[:n])
				}
				if k, err := reply.Encode(again); k != m || err != nil || !bytes.Equal(again[:m], answer[:m]) {
					t.Fatalf("reply encodes to %x, %v; want %x", again[:m], err, answer[:m])
				}
				t.Logf("%v request %+v reply %+v", d.transport, request, reply)
				config := mpa.Config{CRC: request.CRC || reply.CRC}
				if config.CRC || request.Markers || reply.Markers {
					t.Error("unexpected CRCs or markers: update testdata/README.md")
				}
				for _, half := range [][]byte{stream[n:], answer[m:]} {
					for _, chunk := range []int{len(half), 1, 1448, -1} {
						follow(t, half, config, chunk, all)
					}
				}
			}
		})
	}
	want := []rdmap.Opcode{rdmap.Write, rdmap.ReadRequest, rdmap.ReadResponse, rdmap.Send}
	for _, op := range want {
		if all[op] == 0 {
			t.Errorf("no %v in any capture", op)
		}
	}
	t.Logf("seen: %v", all)
}

// withoutPads sets pads to zero, as this implementation must send them, and siw does not.
func withoutPads(stream []byte) []byte {
	stream = bytes.Clone(stream)
	for at := 0; at < len(stream); {
		end := at + 2 + int(binary.BigEndian.Uint16(stream[at:]))
		pad := -end & 3
		clear(stream[end : end+pad])
		at = end + pad + 4
	}
	return stream
}

// follow reads one direction in pieces of chunk bytes, or of random sizes if chunk is negative.
func follow(t *testing.T, stream []byte, config mpa.Config, chunk int, all map[rdmap.Opcode]int) {
	t.Helper()
	seen := make(map[rdmap.Opcode]int)
	r := &reader{t: t, seen: seen, sender: mpa.NewSender(config)}
	receiver := mpa.NewReceiver(config)
	for rest := stream; len(rest) > 0; {
		n := chunk
		if n < 0 {
			n = 1 + rand.IntN(4000)
		}
		n = min(n, len(rest))
		if err := receiver.Feed(rest[:n], r); err != nil {
			t.Fatalf("FPDU %d: %v", r.fpdus, err)
		}
		rest = rest[n:]
	}
	if receiver.Pending() != 0 {
		t.Errorf("%d bytes after the last FPDU", receiver.Pending())
	}
	if !bytes.Equal(r.again, withoutPads(stream)) {
		t.Error("encoding gives other bytes")
	}
	for op, n := range seen {
		all[op] += n
	}
}
