package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

var header4 = append([]byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17}, make([]byte, 18)...)

// full returns a packet with a value in every field.
func full(o wire.Opcode, payload int) *wire.Packet {
	p := &wire.Packet{
		BTH: wire.BTH{
			Opcode: o, Solicited: true, MigReq: true, PKey: 0x8001, FECN: true, BECN: true, Reserved6: 0x2a,
			DestQP: 0xabcdef, AckReq: true, Reserved7: 0x55, PSN: 0xfedcba, Pad: wire.PadLen(payload),
		},
		RETH:           wire.RETH{Addr: 0x0102030405060708, RKey: 0x11121314, Length: 0x21222324},
		AETH:           wire.AETH{Syndrome: wire.NakRemoteAccess, MSN: 0x313233},
		AtomicETH:      wire.AtomicETH{Addr: 0x4142434445464748, RKey: 0x51525354, Swap: 0x6162636465666768, Compare: 0x7172737475767778},
		AtomicAckETH:   wire.AtomicAckETH{Orig: 0x8182838485868788},
		Imm:            0x91929394,
		InvalidateRKey: 0xa1a2a3a4,
		DETH:           wire.DETH{QKey: 0xb1b2b3b4, Reserved8: 0xb5, SrcQP: 0xb6b7b8},
		XRCETH:         wire.XRCETH{Reserved8: 0xe1, SRQ: 0xe2e3e4},
		FETH:           wire.FETH{Reserved: 0x3070b0f, Selectivity: 1, Placement: 3},
	}
	if o.Info().HasPayload() {
		p.Payload = bytes.Repeat([]byte{0xee}, payload)
	} else {
		p.Pad = 0
	}
	return p
}

// TestOpcodes checks the headers of each opcode and their order, byte by byte (IBTA Vol 1 table
// 38).
func TestOpcodes(t *testing.T) {
	const (
		deth    = "b1b2b3b4b5b6b7b8"
		reth    = "01020304050607081112131421222324"
		atomic  = "4142434445464748515253546162636465666768" + "7172737475767778"
		aeth    = "62313233"
		orig    = "8182838485868788"
		imm     = "91929394"
		ieth    = "a1a2a3a4"
		feth    = "c1c2c3d3"
		nothing = ""
	)
	want := map[wire.Opcode]string{
		0x00: nothing, 0x01: nothing, 0x02: nothing, 0x03: imm, 0x04: nothing, 0x05: imm,
		0x06: reth, 0x07: nothing, 0x08: nothing, 0x09: imm, 0x0a: reth, 0x0b: reth + imm,
		0x0c: reth, 0x0d: aeth, 0x0e: nothing, 0x0f: aeth, 0x10: aeth, 0x11: aeth, 0x12: aeth + orig,
		0x13: atomic, 0x14: atomic, 0x16: ieth, 0x17: ieth, 0x1c: feth + reth, 0x1d: reth,
		0x20: nothing, 0x21: nothing, 0x22: nothing, 0x23: imm, 0x24: nothing, 0x25: imm,
		0x26: reth, 0x27: nothing, 0x28: nothing, 0x29: imm, 0x2a: reth, 0x2b: reth + imm,
		0x64: deth, 0x65: deth + imm, 0x81: nothing,
	}
	for o, x := range want { // XRC's are those of RC, and requests have an XRCETH first
		if o < 0x1e {
			if o < 0x0d || o > 0x12 {
				x = "e1e2e3e4" + x
			}
			want[o|0xa0] = x
		}
	}
	for i := range 256 {
		o := wire.Opcode(i)
		extensions, known := want[o]
		info := o.Info()
		if info.Known() != known {
			t.Errorf("%v: Known %v", o, info.Known())
		}
		if !known {
			if !strings.HasPrefix(o.String(), "opcode 0x") || info != wire.Opcode(0xff).Info() || info.HeaderLen() != wire.BTHLen {
				t.Errorf("%v: has properties though unknown", o)
			}
			continue
		}
		p := full(o, 16)
		b := encode(p, header4)
		bth := fmt.Sprintf("%02x", i) + "c08001" + "eaabcdef" + "d5fedcba"
		if got := fmt.Sprintf("%x", b[:p.HeaderLen()]); got != bth+extensions {
			t.Errorf("%v: headers\n%s want\n%s", o, got, bth+extensions)
		}
		var q wire.Packet
		if err := q.Parse(b); err != nil {
			t.Errorf("%v: %v", o, err)
			continue
		}
		if again := encode(&q, header4); !bytes.Equal(again, b) {
			t.Errorf("%v: %x encoded again is %x", o, b, again)
		}
		if q.BTH != p.BTH || !bytes.Equal(q.Payload, p.Payload) {
			t.Errorf("%v: parsed %+v want %+v", o, q, p)
		}
	}
}

// TestInfo checks that an opcode's properties agree with its name.
func TestInfo(t *testing.T) {
	for i := range 256 {
		o := wire.Opcode(i)
		info, name := o.Info(), o.String()
		if !info.Known() || o == wire.CNP {
			continue
		}
		has := func(word string) bool { return strings.Contains(name, word) }
		single := has("Only") || has("READ Request") || has("CmpSwap") || has("FetchAdd") || has("Acknowledge") ||
			has("FLUSH") || has("ATOMIC WRITE")
		response := has("Response") || has("Acknowledge")
		got := []bool{
			info.Send(), info.Write() || info.AtomicWrite(), info.Read(), info.Atomic() || info.AtomicWrite(), info.Flush(),
			info.First(), info.Last(), info.Only(),
			info.Request(), info.Response(), info.HasImmDt(), info.HasIETH(),
		}
		want := []bool{
			has("SEND"), has("WRITE"), has("READ"), has("ATOMIC") || has("CmpSwap") || has("FetchAdd"), has("FLUSH"),
			has("First") || single, has("Last") || single, single,
			!response, response, has("Immediate"), has("Invalidate"),
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v want %v", o, got, want)
		}
		transport := map[wire.Transport]string{wire.RC: "RC ", wire.UC: "UC ", wire.UD: "UD ", wire.XRC: "XRC "}[o.Transport()]
		if transport == "" || !strings.HasPrefix(name, transport) {
			t.Errorf("%v: transport %d", o, o.Transport())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	change := func(o wire.Opcode, payload int, f func(b []byte) []byte) []byte {
		return f(encode(full(o, payload), header4))
	}
	version := func(b []byte) []byte { b[1] |= 1; return b }
	pad := func(n byte) func([]byte) []byte {
		return func(b []byte) []byte { b[1] = b[1]&^0x30 | n<<4; return b }
	}
	unmarked := func(b []byte) []byte { b[8] &= 0x80; return append(b, 0, 0, 0, 0) }
	longer := func(n int) func([]byte) []byte {
		return func(b []byte) []byte { return append(b, make([]byte, n)...) }
	}
	shorter := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, wire.ErrShort},
		{"no ICRC", change(wire.RCSendOnly, 0, shorter(4)), wire.ErrShort},
		{"RETH cut", change(wire.RCReadRequest, 0, shorter(4)), wire.ErrShort},
		{"version 1", change(wire.RCSendOnly, 8, version), wire.ErrVersion},
		{"reserved opcode", change(wire.RCSendOnly, 8, func(b []byte) []byte { b[0] = 0x15; return b }), wire.ErrOpcode},
		{"pad without payload", change(wire.RCSendOnly, 0, pad(1)), wire.ErrPad},
		{"pad in an acknowledgement", change(wire.RCAck, 0, pad(3)), wire.ErrPad},
		{"odd length", change(wire.RCSendOnly, 8, longer(1)), wire.ErrPad},
		{"acknowledgement with payload", change(wire.RCAck, 0, unmarked), wire.ErrPayload},
		{"READ request with payload", change(wire.RCReadRequest, 0, longer(8)), wire.ErrPayload},
		{"short CNP", change(wire.CNP, 16, shorter(4)), wire.ErrPayload},
		{"long CNP", change(wire.CNP, 16, longer(4)), wire.ErrPayload},
	} {
		var p wire.Packet
		if err := p.Parse(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for o := range 256 {
		b := encode(full(wire.Opcode(o), 16), header4)
		for n := range b {
			var p wire.Packet
			if err := p.Parse(b[:n]); err == nil && p.Size() != n {
				t.Errorf("%v cut to %d bytes: parsed as %d", wire.Opcode(o), n, p.Size())
			}
		}
	}
}

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		want int32
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {5, 0xfffffb, 10},
		{0x7fffff, 0, 0x7fffff}, {0x800001, 0, -0x7fffff}, {0x800000, 0, -0x800000},
	} {
		if got := wire.PSNDiff(c.a, c.b); got != c.want {
			t.Errorf("PSNDiff(%#x, %#x) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := wire.PSNAdd(c.b, uint32(c.want)); got != c.a {
			t.Errorf("PSNAdd(%#x, %d) = %#x, want %#x", c.b, c.want, got, c.a)
		}
	}
}

// TestCredits checks that codes 0 and 1 stand for themselves. The rest alternate between a power of
// two and 1.5 times that power, up to 32,768. Code 31 is invalid.
func TestCredits(t *testing.T) {
	want := []uint32{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
		6144, 8192, 12288, 16384, 24576, 32768}
	for code := range uint8(128) {
		h := wire.AETH{Syndrome: code}
		n, ok := h.Credits()
		if i := int(code & 31); ok != (i < 31) || ok && n != want[i] {
			t.Errorf("code %d is %d, %v", code, n, ok)
		}
	}
}

// TestRNRTimer checks that the table is 10 µs and then alternates between a power of two and 1.5
// times that power. Code 0 is the longest.
func TestRNRTimer(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 2: 20 * time.Microsecond, 3: 30 * time.Microsecond,
		4: 40 * time.Microsecond, 12: 640 * time.Microsecond, 13: 960 * time.Microsecond, 14: 1280 * time.Microsecond,
		30: 327680 * time.Microsecond, 31: 491520 * time.Microsecond,
	} {
		if got := wire.RNRTimer(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
	for code := uint8(4); code < 32; code++ {
		if wire.RNRTimer(code) != 2*wire.RNRTimer(code-2) {
			t.Errorf("code %d is not twice code %d", code, code-2)
		}
	}
}

// FuzzParse checks that nothing panics, and that a parsed packet encodes to the same bytes except
// for the pad and the ICRC.
func FuzzParse(f *testing.F) {
	for o := range 256 {
		f.Add(encode(full(wire.Opcode(o), 7), header4))
	}
	for _, file := range captureFiles(f) {
		if filepath.Base(file) != "rc-send-long.pcap.gz" {
			for _, x := range captured(f, file)[:2] {
				f.Add(x.payload)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, rest wire.Packet
		wire.CheckICRC(header4, b)
		err := p.Parse(b)
		for _, n := range []int{0, wire.BTHLen - 1, wire.BTHLen, len(b)} { // of what a switch has left
			if err := rest.ParseTrimmed(b[:min(n, len(b))]); err == nil && (n < wire.BTHLen || rest.Payload != nil) {
				t.Fatalf("%x is parsed from %d bytes", b, n)
			}
		}
		if err != nil {
			return
		}
		if err := rest.ParseTrimmed(b[:wire.BTHLen]); err != nil || rest.BTH != p.BTH {
			t.Fatalf("%x: BTH %+v, %v, want %+v", b, rest.BTH, err, p.BTH)
		}
		want := bytes.Clone(b)
		clear(want[len(want)-4-int(p.Pad) : len(want)-4])
		wire.PutICRC(header4, want)
		if got := encode(&p, header4); !bytes.Equal(got, want) {
			t.Fatalf("%x\nencoded again is\n%x", want, got)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		opcode  wire.Opcode
		payload int
	}{{wire.RCWriteOnly, 64}, {wire.RCAck, 0}, {wire.RCSendMiddle, 4096}} {
		b.Run(fmt.Sprintf("%v/%d", c.opcode, c.payload), func(b *testing.B) {
			data := encode(full(c.opcode, c.payload), header4)
			b.ReportAllocs()
			var p wire.Packet
			for b.Loop() {
				if p.Parse(data) != nil {
					b.Fatal("refused")
				}
			}
		})
	}
}

func BenchmarkEncodeHeader(b *testing.B) {
	p := full(wire.RCWriteOnly, 64)
	data := make([]byte, p.Size())
	b.ReportAllocs()
	for b.Loop() {
		p.EncodeHeader(data)
	}
}

func BenchmarkCheckICRC(b *testing.B) {
	for _, ip := range []int{20, 40} {
		for _, n := range []int{0, 8, 64, 1024, 4096} {
			b.Run(fmt.Sprintf("ip%d/%d", ip, n), func(b *testing.B) {
				header, data := datagram(ip+8, n)
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					if !wire.CheckICRC(header, data) {
						b.Fatal("wrong")
					}
				}
			})
		}
	}
}

// BenchmarkHeaderICRC measures a BTH and the headers' part of the ICRC, for a single packet and for
// one that follows others of its kind.
func BenchmarkHeaderICRC(b *testing.B) {
	for _, ip := range []int{20, 40} {
		header, data := datagram(ip+8, 0)
		bth := wire.BTH{Opcode: wire.RCWriteMiddle, PKey: wire.DefaultPKey, DestQP: 0x123456}
		b.Run(fmt.Sprintf("ip%d/alone", ip), func(b *testing.B) {
			for b.Loop() {
				bth.PSN++
				bth.Encode(data)
				wire.PutSum(data, wire.ICRC(header, data[:wire.BTHLen]))
			}
		})
		b.Run(fmt.Sprintf("ip%d/run", ip), func(b *testing.B) {
			var run wire.Run
			for b.Loop() {
				bth.PSN++
				bth.Encode(data)
				wire.PutSum(data, run.ICRC(header, data[:wire.BTHLen]))
			}
		})
	}
}

// TestParseInPlace checks a packet in memory that changes later. The packet keeps the values of the
// headers when they were copied, which equal those of Parse. Its data stays in place, and any other
// payload is copied.
func TestParseInPlace(t *testing.T) {
	var scratch wire.Scratch
	for i := range 256 {
		o := wire.Opcode(i)
		info := o.Info()
		data := info.Send() || info.Write() || info.Read() && info.Response()
		for _, payload := range []int{0, 3, 8, 16, 400, 1024} {
			p := full(o, payload)
			if !info.Known() {
				continue
			}
			b := make([]byte, p.Size())
			p.Encode(header4, b)
			for n := range min(len(b), 100) {
				var q, r wire.Packet
				if want, got := r.Parse(b[:n]), q.ParseInPlace(b[:n], &scratch); (want == nil) != (got == nil) {
					t.Fatalf("%v, %d of %d bytes: %v, want %v", o, n, len(b), got, want)
				}
			}
			var q, want wire.Packet
			errWant, err := want.Parse(b), q.ParseInPlace(b, &scratch)
			if len(b) > len(scratch) && !data {
				if err == nil {
					t.Errorf("%v with %d bytes of payload was accepted", o, payload)
				}
				continue
			}
			if errWant != nil || err != nil {
				if (errWant == nil) != (err == nil) {
					t.Errorf("%v with %d bytes: %v, want %v", o, payload, err, errWant)
				}
				continue
			}
			if !reflect.DeepEqual(q, want) {
				t.Errorf("%v with %d bytes: %+v, want %+v", o, payload, q, want)
			}
			want.Payload = bytes.Clone(want.Payload)
			n := info.HeaderLen()
			for j := range b {
				if !data || j < n {
					b[j] ^= 0xff
				}
			}
			if !reflect.DeepEqual(q, want) {
				t.Errorf("%v with %d bytes, changed afterwards: %+v, want %+v", o, payload, q, want)
			}
			if data && len(q.Payload) > 0 && &q.Payload[0] != &b[n] {
				t.Errorf("%v with %d bytes: the data is a copy", o, payload)
			}
		}
	}
	unknown := append([]byte{0x1f}, make([]byte, 40)...)
	var p wire.Packet
	if err := p.ParseInPlace(unknown, &scratch); !errors.Is(err, wire.ErrOpcode) || p.Opcode != 0x1f {
		t.Errorf("an unknown opcode: %v", err)
	}
}

// TestSequence checks that only a packet that is the same except for the next PSN, of 24 bits,
// follows a packet.
func TestSequence(t *testing.T) {
	first := wire.BTH{Opcode: wire.RCWriteMiddle, PKey: wire.DefaultPKey, DestQP: 0x123456, PSN: 0xfffffe, Reserved7: 0x55}
	var b [wire.BTHLen]byte
	next := first
	next.PSN++
	next.Encode(b[:])
	for i := range b {
		for bit := byte(1); bit != 0; bit <<= 1 {
			b[i] ^= bit
			if s := first.Sequence(); s.Next(&b) {
				t.Errorf("byte %d bit %#02x flipped: it follows", i, bit)
			}
			b[i] ^= bit
		}
	}
	s := first.Sequence()
	for _, psn := range []uint32{0xffffff, 0, 1} {
		next.PSN = psn
		next.Encode(b[:])
		if !s.Next(&b) || s.Next(&b) {
			t.Errorf("PSN %#x does not follow once", psn)
		}
	}
}
