package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// cm adds a message of CM from alice to herself, with a PSN of QP 1.
func (c *rc) cm(psn uint32, m mad.Message) {
	var b [mad.Size]byte
	mad.Encode(&b, 1, m)
	c.now += time.Millisecond
	c.ids[0]++
	p := &wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: 1, PSN: psn}, DETH: wire.DETH{QKey: mad.QKey, SrcQP: 1}, Payload: b[:]}
	data := ethernet(alice, alice, c.ids[0], p)
	r := record{data: data}
	r.info.Timestamp, r.info.CaptureLength, r.info.Length = time.Unix(1, 0).Add(c.now), len(data), len(data)
	c.packets = append(c.packets, r)
}

// TestHealthy: right traffic that looks unusual has no findings.
func TestHealthy(t *testing.T) {
	const ms = time.Millisecond
	for name, packets := range map[string]func(c *rc){
		"a READ is asked for again from its middle on, twice": func(c *rc) {
			read := func(after time.Duration, psn, packets uint32) {
				c.send(0, after, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: psn}, RETH: wire.RETH{Length: packets * 1024}})
			}
			answer := func(psn uint32, op wire.Opcode) {
				c.send(1, time.Microsecond, &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: 1},
					Payload: make([]byte, 1024)})
			}
			read(0, 5, 5)
			answer(5, wire.RCReadResponseFirst)
			answer(6, wire.RCReadResponseMiddle)
			for range 2 { // what the responder sends is lost
				read(5*ms, 7, 3)
			}
			read(5*ms, 7, 3)
			answer(7, wire.RCReadResponseFirst)
			answer(8, wire.RCReadResponseMiddle)
			answer(9, wire.RCReadResponseLast)
		},
		"identifications that begin again with each superframe": func(c *rc) {
			for range 3 {
				c.ids[0] = 0xffff // the first packet of a superframe has 0
				for i := range uint32(3) {
					c.send(0, 2*time.Microsecond, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: 5 + i}, RETH: wire.RETH{Length: 64}})
				}
				c.now += 10 * ms
			}
		},
		"two processes behind one address": func(c *rc) {
			c.cm(1, &mad.REQ{LocalCommID: 10, LocalQPN: 0x12, StartingPSN: 100})
			c.cm(1, &mad.REP{LocalCommID: 20, RemoteCommID: 10, LocalQPN: 0x21, StartingPSN: 200})
			c.cm(2, &mad.RTU{LocalCommID: 10, RemoteCommID: 20})
			c.cm(2, &mad.DREQ{LocalCommID: 20, RemoteCommID: 10, RemoteQPN: 0x12})
			c.cm(3, &mad.DREP{LocalCommID: 10, RemoteCommID: 20})
			c.cm(1, &mad.REQ{LocalCommID: 11, LocalQPN: 0x13, StartingPSN: 100}) // a third process
			c.cm(3, &mad.REJ{LocalCommID: 0, RemoteCommID: 11, Reason: mad.InvalidServiceID})
		},
		"a listener asks its requesters by one ID, before it accepts them": func(c *rc) {
			ids := []uint32{10, 11, 12}
			for _, id := range ids {
				c.cm(id, &mad.REQ{LocalCommID: id, LocalQPN: id + 100, StartingPSN: 100})
			}
			for _, id := range ids {
				c.cm(id, &mad.DREQ{LocalCommID: 20, RemoteCommID: id, RemoteQPN: id + 100})
				c.cm(id+10, &mad.DREP{LocalCommID: id, RemoteCommID: 20})
			}
			for _, id := range ids {
				c.cm(id+10, &mad.REP{LocalCommID: id + 20, RemoteCommID: id, LocalQPN: id + 200, StartingPSN: 200})
				c.cm(id+20, &mad.RTU{LocalCommID: id, RemoteCommID: id + 20})
			}
			c.now += 20 * time.Second
			c.cm(60, &mad.DREQ{LocalCommID: 30, RemoteCommID: 10, RemoteQPN: 110})
			c.cm(61, &mad.DREP{LocalCommID: 10, RemoteCommID: 30})
		},
		"a listener still asks a requester at the end": func(c *rc) {
			for n := range uint32(3) {
				c.cm(3*n, &mad.REQ{LocalCommID: 10, LocalQPN: 0x12, StartingPSN: 100})
				c.cm(3*n+1, &mad.DREQ{LocalCommID: 20, RemoteCommID: 10, RemoteQPN: 0x12})
				c.cm(3*n+2, &mad.DREP{LocalCommID: 10, RemoteCommID: 20})
				c.now += 6 * time.Second
			}
		},
		"one packet comes again as a probe, and new ones follow before it is answered": func(c *rc) {
			for psn := range uint32(3) {
				c.request(time.Microsecond, 5+psn, wire.RCSendOnly, 8)
			}
			c.request(20*ms, 5, wire.RCSendOnly, 8)
			c.request(5*ms, 8, wire.RCSendOnly, 8)
			c.answer(5*ms, 8, wire.AckUnlimited, 4)
		},
		"the end of a response is lost before the point of capture, when a part was asked for again": func(c *rc) {
			read := func(psn, packets uint32) {
				c.send(0, 5*ms, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: psn}, RETH: wire.RETH{Length: packets * 1024}})
			}
			answer := func(psn uint32, op wire.Opcode) {
				c.send(1, time.Microsecond, &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: 1},
					Payload: make([]byte, 1024)})
			}
			read(5, 5)
			answer(5, wire.RCReadResponseFirst)
			answer(6, wire.RCReadResponseMiddle)
			read(7, 3) // what follows is on its way
			answer(7, wire.RCReadResponseMiddle)
			answer(8, wire.RCReadResponseMiddle)
			answer(7, wire.RCReadResponseFirst)
			answer(8, wire.RCReadResponseMiddle)
			answer(9, wire.RCReadResponseLast)
		},
		"the last packet of a response alone is asked for again": func(c *rc) {
			read := func(psn, packets uint32) {
				c.send(0, 5*ms, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: psn}, RETH: wire.RETH{Length: packets * 1024}})
			}
			answer := func(psn uint32, op wire.Opcode) {
				c.send(1, time.Microsecond, &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: 1},
					Payload: make([]byte, 1024)})
			}
			read(5, 3)
			answer(5, wire.RCReadResponseFirst)
			answer(6, wire.RCReadResponseMiddle)
			read(7, 1)
			answer(7, wire.RCReadResponseOnly)
		},
		"each copy of a packet that came again before the first answer has its own RNR NAK": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.request(20*ms, 5, wire.RCSendOnly, 8) // the responder is slow
			for range 2 {
				c.answer(10*time.Microsecond, 5, wire.RNRNak|12, 0) // 640 µs
			}
			c.answer(10*time.Microsecond, 5, wire.NakPSNSeq, 0)
			c.request(700*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.answer(time.Microsecond, 6, wire.AckUnlimited, 2)
		},
		"a sequence NAK follows each RNR NAK at once": func(c *rc) {
			for range 3 {
				c.request(700*time.Microsecond, 5, wire.RCSendOnly, 8)
				c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
				c.answer(10*time.Microsecond, 5, wire.RNRNak|12, 0)
				c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
			}
			c.request(700*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 6, wire.AckUnlimited, 2) // for both
		},
		"the first packets are lost in front of the point of capture, and come again twice": func(c *rc) {
			again := func(psns ...uint32) {
				for _, psn := range psns {
					c.request(time.Microsecond, psn, wire.RCSendMiddle, 1024)
				}
			}
			again(7)
			c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
			again(8, 5, 6)
			c.now += 50 * time.Microsecond // what followed is lost
			again(5)
			c.answer(time.Microsecond, 6, wire.AckUnlimited, 0)
			again(6)
			c.answer(time.Microsecond, 6, wire.AckUnlimited, 0)
			again(7, 8)
			c.request(time.Microsecond, 9, wire.RCSendLast, 8)
			c.answer(time.Microsecond, 9, wire.AckUnlimited, 1)
		},
		"the acknowledgement of a repetition counts a READ behind it, whose response is lost": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(5*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			read := &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: 7}, RETH: wire.RETH{Length: 8}}
			c.send(0, time.Microsecond, read)
			c.request(20*ms, 6, wire.RCSendOnly, 8)
			c.answer(5*time.Microsecond, 6, wire.AckUnlimited, 3) // that of the first one is lost
			c.send(0, time.Microsecond, read)
			c.send(1, 5*time.Microsecond, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadResponseOnly, PSN: 7},
				AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: 3}, Payload: make([]byte, 8)})
			c.request(time.Microsecond, 8, wire.RCSendOnly, 8)
			c.answer(5*time.Microsecond, 8, wire.AckUnlimited, 4)
		},
		"what a NAK asks for comes for the first time": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 8, wire.RCSendOnly, 8)
			c.answer(time.Microsecond, 6, wire.NakPSNSeq, 1)
			c.request(time.Microsecond, 9, wire.RCSendOnly, 8)
			for psn := range uint32(2) {
				c.request(10*time.Microsecond, 6+2*psn, wire.RCSendOnly, 8)
				c.request(time.Microsecond, 7+2*psn, wire.RCSendOnly, 8)
				c.answer(time.Microsecond, 7+2*psn, wire.AckUnlimited, 3+2*psn)
			}
		},
		"a requester begins again where a NAK has asked it to": func(c *rc) {
			for psn := range uint32(4) {
				c.request(time.Microsecond, 5+psn, wire.RCSendOnly, 8)
			}
			c.answer(time.Microsecond, 7, wire.NakPSNSeq, 2) // 7 is lost behind the point of capture
			c.request(time.Microsecond, 7, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 8, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 8, wire.AckUnlimited, 4)
			c.request(20*ms, 7, wire.RCSendOnly, 8) // the acknowledgement is lost behind it too
			c.answer(10*time.Microsecond, 8, wire.AckUnlimited, 4)
			c.request(time.Microsecond, 8, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 8, wire.AckUnlimited, 4)
		},
		"a second RNR NAK, when the wait for the first is over": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.RNRNak|12, 0) // 640 µs
			c.answer(10*time.Microsecond, 5, wire.NakPSNSeq, 0)
			c.answer(600*time.Microsecond, 5, wire.RNRNak|12, 0)
			c.request(50*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.answer(time.Microsecond, 6, wire.AckUnlimited, 2)
		},
		"an RNR NAK that has met a repetition": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.RNRNak|12, 0) // 640 µs
			c.request(650*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.answer(20*time.Microsecond, 5, wire.RNRNak|12, 0)
			c.request(30*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.answer(20*time.Microsecond, 5, wire.RNRNak|12, 0)
			c.request(650*time.Microsecond, 5, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.AckUnlimited, 1)
		},
		"an RNR NAK, after which the requester has no retries left": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(10*time.Microsecond, 5, wire.RNRNak|12, 0)
			c.answer(10*time.Microsecond, 5, wire.NakPSNSeq, 0)
			c.cm(1, &mad.DREQ{LocalCommID: 20, RemoteCommID: 10, RemoteQPN: 0x12})
			c.now += 5 * time.Second
			c.cm(2, &mad.DREP{LocalCommID: 10, RemoteCommID: 20})
		},
		"packets that waited at the point of capture": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(time.Microsecond, 5, wire.AckUnlimited, 1)
			c.ids[0] = 0xffff
			c.request(100*ms, 6, wire.RCSendOnly, 8)
			c.ids[0] = 0xffff
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
		},
	} {
		c := &rc{t: t}
		packets(c)
		if a, out := traced(t, new(Command), c.packets); a.counts.Wrong+a.counts.Doubtful+a.counts.Reordered != 0 {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	c := &rc{t: t}
	c.cm(1, &mad.REQ{LocalCommID: 10, LocalQPN: 0x12})
	c.cm(1, &mad.REP{LocalCommID: 20, RemoteCommID: 10, LocalQPN: 0x21})
	c.cm(2, &mad.DREQ{LocalCommID: 20, RemoteCommID: 10, RemoteQPN: 0x21}) // the sender's own QP
	want := "WRONG packet 3: the DREQ names QP 0x21, and the receiver's is 0x12"
	if _, out := traced(t, new(Command), c.packets); !strings.Contains(out, want) {
		t.Errorf("a DREQ of the wrong QP:\n%s", out)
	}
}

// TestRepetitionsReordered: packets that come again are reordered on their way. Each is answered.
func TestRepetitionsReordered(t *testing.T) {
	c := &rc{t: t}
	for psn := range uint32(6) {
		c.request(time.Microsecond, 5+psn, wire.RCSendOnly, 8)
	}
	c.answer(time.Microsecond, 10, wire.AckUnlimited, 6)
	c.now += 20 * time.Millisecond
	for _, psn := range []uint32{5, 7, 6, 8, 9, 10} {
		c.request(time.Microsecond, psn, wire.RCSendOnly, 8)
		c.answer(time.Microsecond, 10, wire.AckUnlimited, 6)
	}
	if a, out := traced(t, new(Command), c.packets); a.counts.Wrong+a.counts.Doubtful != 0 || a.counts.Reordered != 1 {
		t.Errorf("%+v\n%s", a.counts, out)
	}
}

// TestOnceReordered: after a packet that came late, doubts about the pattern of packets are notes.
// The NAK of a packet that another has overtaken may come after its acknowledgement.
func TestOnceReordered(t *testing.T) {
	for name, c := range map[string]struct {
		packets         func(c *rc)
		wrong, doubtful int
	}{
		"answers exchanged": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(20*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
		}, 0, 1},
		"a late packet, then answers exchanged": {func(c *rc) {
			for _, psn := range []uint32{5, 7, 6, 8} {
				c.request(time.Microsecond, psn, wire.RCSendOnly, 8)
			}
			c.answer(20*time.Microsecond, 7, wire.AckUnlimited, 3)
			c.answer(time.Microsecond, 7, wire.NakPSNSeq, 2)
		}, 0, 0},
		"a NAK of the last packet": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(20*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
		}, 1, 0},
		"a second NAK": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(time.Microsecond, 6, wire.RCSendOnly, 8)
			c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
			c.answer(20*time.Microsecond, 5, wire.AckUnlimited, 1)
			c.answer(time.Microsecond, 5, wire.NakPSNSeq, 0)
		}, 1, 1},
	} {
		x := &rc{t: t}
		c.packets(x)
		if a, out := traced(t, new(Command), x.packets); a.counts.Wrong != c.wrong || a.counts.Doubtful != c.doubtful {
			t.Errorf("%s: %+v\n%s", name, a.counts, out)
		}
	}
}

// TestSeenTwice: a node that sends to itself, and a capture of several interfaces, show a packet at
// several points. A copy at one point is wrong.
func TestSeenTwice(t *testing.T) {
	c := &rc{t: t}
	for i := range uint32(8) {
		c.request(time.Microsecond, 5+i, wire.RCSendOnly, 8)
	}
	var cooked []record // sent, then received
	for _, r := range c.packets {
		for direction := range byte(2) {
			d := slices.Concat([]byte{0, direction * 4, 0, 1, 0, 6}, r.data[6:12], []byte{0, 0, 8, 0}, r.data[14:])
			cooked = append(cooked, record{r.info, d})
			cooked[len(cooked)-1].info.CaptureLength, cooked[len(cooked)-1].info.Length = len(d), len(d)
		}
	}
	look := func(packets []record) counts {
		a, err := (&Command{Stats: true}).trace(t.Context(), &sequence{packets, layers.LinkTypeLinuxSLL}, io.Discard, "test")
		if err != nil {
			t.Fatal(err)
		}
		return a.counts
	}
	if n := look(cooked); n.Elsewhere != 8 || n.Wrong+n.Doubtful+n.Reordered != 0 {
		t.Errorf("%+v", n)
	}
	c.packets = slices.Insert(c.packets, 7, c.packets[6])
	if a, out := traced(t, new(Command), c.packets); a.counts.Wrong == 0 || a.counts.Elsewhere != 0 {
		t.Errorf("a copy at one point: %+v\n%s", a.counts, out)
	}
}

// TestAccount: each packet is RDMA, not RDMA by a rule, or left out, and what is left out sets the
// exit status.
func TestAccount(t *testing.T) {
	c := &rc{t: t}
	c.request(0, 5, wire.RCSendOnly, 8)
	whole := c.packets[0].data
	ip := whole[14:]
	udp := func(dst uint16, payload []byte) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0x12, 0x34}, dst)
		b = append(binary.BigEndian.AppendUint16(b, uint16(8+len(payload))), 0, 0)
		return append(b, payload...)
	}
	outer := func(proto byte, payload []byte) []byte {
		b := append([]byte{0x45, 0}, binary.BigEndian.AppendUint16(nil, uint16(20+len(payload)))...)
		return append(append(b, 0, 0, 0, 0, 64, proto, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2), payload...) // the checksum is left to the interface
	}
	ether := func(etherType uint16, b []byte) []byte {
		return append(binary.BigEndian.AppendUint16(bytes.Clone(whole[:12]), etherType), b...)
	}
	fragment := bytes.Clone(outer(17, ip[20:]))
	fragment[6] = 0x20
	trimmed := outer(17, ip[20:])[:20+8+12]
	trimmed[1] = 10 << 2
	for name, x := range map[string]struct {
		b    []byte
		is   kind
		rule string
	}{
		"plain":           {whole, roce, ""},
		"802.1Q":          {ether(0x8100, append([]byte{0, 5, 8, 0}, ip...)), roce, ""},
		"0x9100":          {ether(0x9100, append([]byte{0, 7, 0x81, 0, 0, 5, 8, 0}, ip...)), roce, ""},
		"VXLAN":           {ether(0x800, outer(17, udp(4789, append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, whole...)))), roce, ""},
		"Geneve":          {ether(0x800, outer(17, udp(6081, append([]byte{1, 0, 0x65, 0x58, 0, 0, 1, 0, 0, 0, 0, 0}, whole...)))), roce, ""},
		"GRE with a key":  {ether(0x800, outer(47, append([]byte{0x20, 0, 8, 0, 0, 0, 0, 1}, ip...))), roce, ""},
		"IP in IP":        {ether(0x800, outer(4, ip)), roce, ""},
		"MPLS":            {ether(0x8847, append([]byte{0, 1, 1, 64}, ip...)), roce, ""},
		"PPPoE":           {ether(0x8864, append([]byte{0x11, 0, 0, 1, 0, 2, 0, 0x21}, ip...)), roce, ""},
		"SNAP":            {ether(0x50, append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, ip...)), roce, ""},
		"STP":             {ether(0x26, []byte{0x42, 0x42, 3, 0, 0, 0, 0, 0}), foreign, "LLC frames, such as STP"},
		"ARP":             {ether(0x806, make([]byte, 28)), foreign, "ARP"},
		"ICMP":            {ether(0x800, outer(1, make([]byte, 8))), foreign, "ICMP"},
		"DNS":             {ether(0x800, outer(17, udp(53, make([]byte, 40)))), datagram, ""},
		"ESP":             {ether(0x800, outer(50, make([]byte, 40))), opaque, "IPsec ESP, encrypted"},
		"WireGuard":       {ether(0x800, outer(17, udp(9999, append([]byte{4}, make([]byte, 31)...)))), opaque, "WireGuard, encrypted"},
		"VXLAN-GPE":       {ether(0x800, outer(17, udp(4790, make([]byte, 60)))), opaque, "VXLAN-GPE"},
		"MACsec":          {ether(0x88e5, make([]byte, 40)), opaque, "MACsec, which may be encrypted"},
		"a fragment":      {ether(0x800, fragment), opaque, "IP fragments"},
		"trimmed":         {ether(0x800, trimmed), opaque, trimmedRoCE},
		"a new EtherType": {ether(0x7777, make([]byte, 40)), opaque, "EtherType 0x7777"},
		"a new protocol":  {ether(0x800, outer(200, make([]byte, 40))), opaque, "IP protocol 200"},
	} {
		var f frame
		f.decode(layers.LinkTypeEthernet, x.b)
		if f.kind != x.is || f.rule != x.rule || len(f.wrong) > 0 {
			t.Errorf("%s: kind %d, %q, %q", name, f.kind, f.rule, f.wrong)
		}
		if f.kind == roce && !bytes.Equal(f.payload, ip[28:]) {
			t.Errorf("%s: other bytes", name)
		}
	}
	var f frame
	if f.decode(1234, whole); f.kind != opaque {
		t.Errorf("an unknown link type: %+v", f)
	}
}

// ng returns a pcapng file of one interface with a resolution, and packets at times.
func ng(order binary.AppendByteOrder, resolution byte, flags uint32, data []byte, times ...uint64) []byte {
	block := func(t uint32, b []byte) []byte {
		n := uint32(len(b) + 12)
		return order.AppendUint32(append(order.AppendUint32(order.AppendUint32(nil, t), n), b...), n)
	}
	option := func(code uint16, v []byte) []byte {
		return append(append(order.AppendUint16(order.AppendUint16(nil, code), uint16(len(v))), v...), make([]byte, -len(v)&3)...)
	}
	file := block(blockSection, append(order.AppendUint32(nil, 0x1a2b3c4d), order.AppendUint64(order.AppendUint32(nil, 1), 1<<64-1)...))
	if order == binary.AppendByteOrder(binary.BigEndian) {
		copy(file[12:], []byte{0, 1, 0, 0})
	}
	intf := append(order.AppendUint32(order.AppendUint32(nil, 0), 0), option(optionResolution, []byte{resolution})...)
	file = append(file, block(blockInterface, intf)...)
	if order == binary.AppendByteOrder(binary.BigEndian) {
		file[28+8], file[28+9] = 0, 1
	} else {
		file[28+8] = 1
	}
	for _, ts := range times {
		b := order.AppendUint32(order.AppendUint32(order.AppendUint32(nil, 0), uint32(ts>>32)), uint32(ts))
		b = append(order.AppendUint32(order.AppendUint32(b, uint32(len(data))), uint32(len(data))), data...)
		b = append(b, make([]byte, -len(data)&3)...)
		file = append(file, block(blockEnhanced, append(b, option(optionFlags, order.AppendUint32(nil, flags))...))...)
	}
	return file
}

// TestTimes: times of any resolution and byte order are right.
func TestTimes(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, x := range []struct {
			resolution byte
			ts         uint64
			want       time.Time
		}{
			{6, 1700000000_250000, time.Unix(1700000000, 250e6)},
			{9, 1700000000_250000001, time.Unix(1700000000, 250000001)},
			{0, 1700000000, time.Unix(1700000000, 0)},
			{3, 1700000000_250, time.Unix(1700000000, 250e6)},
			{12, 17000000_250000000001, time.Unix(17000000, 250e6)},
			{0x80 | 20, 1700000000<<20 | 1<<18, time.Unix(1700000000, 250e6)},
			{0x80 | 32, 1700000000<<32 | 1<<31, time.Unix(1700000000, 500e6)},
			{0x80, 1700000000, time.Unix(1700000000, 0)},
		} {
			src, err := open(bytes.NewReader(ng(order, x.resolution, 2, make([]byte, 61), x.ts)))
			if err != nil {
				t.Fatal(err)
			}
			data, info, link, err := src.next()
			if err != nil || !info.Timestamp.Equal(x.want) || len(data) != 61 || link != layers.LinkTypeEthernet || src.(*ngSource).direction != 2 {
				t.Errorf("%v, resolution %#x: %v, want %v (%d bytes, %v, %v)", order, x.resolution, info.Timestamp, x.want, len(data), link, err)
			}
			if _, _, _, err = src.next(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
		}
	}
}

// TestLeftOut: the exit status is 3 if a packet is left out and nothing is wrong.
func TestLeftOut(t *testing.T) {
	b := append(make([]byte, 12), 0x77, 0x77)
	var out bytes.Buffer
	env := &cli.Env{Stdout: &out}
	c := &Command{File: t.TempDir() + "/f"}
	write(t, c.File, ng(binary.LittleEndian, 6, 0, append(b, make([]byte, 50)...), 1, 2))
	err := c.Run(context.Background(), env)
	want := "LEFT OUT: 2 EtherType 0x7777\nnothing is wrong in what was checked\n"
	if _, is := err.(cli.IncompleteError); !is || !strings.Contains(out.String(), want) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
