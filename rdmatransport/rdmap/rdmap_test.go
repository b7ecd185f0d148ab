package rdmap_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

func bin(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOpcodes checks RFC 5040 figures 4 and 5, and RFC 7306 figures 2 and 3.
func TestOpcodes(t *testing.T) {
	for number, want := range []rdmap.Info{
		{"RDMA Write", true, 0, true, 0, false, false},
		{"RDMA Read Request", false, 1, false, 28, false, false},
		{"RDMA Read Response", true, 0, true, 0, false, false},
		{"Send", false, 0, true, 0, false, false},
		{"Send with Invalidate", false, 0, true, 0, true, false},
		{"Send with SE", false, 0, true, 0, false, true},
		{"Send with SE and Invalidate", false, 0, true, 0, true, true},
		{"Terminate", false, 2, false, 4, false, false},
		{"Immediate Data", false, 0, false, 8, false, false},
		{"Immediate Data with SE", false, 0, false, 8, false, true},
		{"Atomic Request", false, 1, false, 52, false, false},
		{"Atomic Response", false, 3, false, 12, false, false},
	} {
		op := rdmap.Opcode(number)
		if got := op.Info(); got != want {
			t.Errorf("%d: %+v, want %+v", number, got, want)
		}
		if c := op.Control(); c != 0x40|byte(number) {
			t.Errorf("%v: control byte %#x", op, c)
		}
		for qn := range uint32(5) {
			if err := op.CheckUntagged(qn); (err == nil) != (!want.Tagged && qn == want.Queue) {
				t.Errorf("%v on queue %d: %v", op, qn, err)
			}
		}
		if err := op.CheckTagged(); (err == nil) != want.Tagged {
			t.Errorf("%v tagged: %v", op, err)
		}
	}
	for number := 12; number < 256; number++ {
		op := rdmap.Opcode(number)
		if op.Known() || op.Info() != (rdmap.Info{}) || op.CheckTagged() == nil || op.CheckUntagged(0) == nil {
			t.Errorf("%v is known", op)
		}
	}
}

// TestControl checks every control byte.
func TestControl(t *testing.T) {
	for c := range 256 {
		op, err := rdmap.ParseControl(byte(c))
		want := error(nil)
		if c&15 > 11 {
			want = rdmap.UnexpectedOpcode
		}
		if c>>6 != 1 {
			want = rdmap.InvalidVersion
		}
		if err != want || op != rdmap.Opcode(c&15) {
			t.Errorf("%#x: %v, %v; want %v", c, op, err, want)
		}
	}
}

func TestReadRequest(t *testing.T) {
	want := bin(t, "01020304 1112131415161718 00001000 21222324 3132333435363738")
	h := rdmap.ReadRequestHeader{SinkSTag: 0x01020304, SinkTO: 0x1112131415161718, Size: 4096,
		SourceSTag: 0x21222324, SourceTO: 0x3132333435363738}
	got := make([]byte, rdmap.ReadRequestLen)
	if h.Encode(got); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
	if parsed, err := rdmap.ParseReadRequest(want); err != nil || parsed != h {
		t.Errorf("parsed %+v, %v", parsed, err)
	}
	h.Advance(2048)
	if want := (rdmap.ReadRequestHeader{SinkSTag: 0x01020304, SinkTO: 0x1112131415161f18, Size: 2048,
		SourceSTag: 0x21222324, SourceTO: 0x3132333435363f38}); h != want {
		t.Errorf("after 2048 bytes %+v, want %+v", h, want)
	}
}

func TestAtomicRequest(t *testing.T) {
	want := bin(t, "00000002 01020304 11121314 2122232425262728 3132333435363738 4142434445464748 5152535455565758 6162636465666768")
	h := rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, ID: 0x01020304, STag: 0x11121314, TO: 0x2122232425262728,
		Data: 0x3132333435363738, Mask: 0x4142434445464748, CompareData: 0x5152535455565758, CompareMask: 0x6162636465666768}
	got := make([]byte, rdmap.AtomicRequestLen)
	if h.Encode(got); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
	if parsed, err := rdmap.ParseAtomicRequest(want); err != nil || parsed != h {
		t.Errorf("parsed %+v, %v", parsed, err)
	}
	for code := range rdmap.AtomicCode(16) {
		if known := code == 0 || code == 2; code.Known() != known {
			t.Errorf("code %d known: %v", code, code.Known())
		}
	}
}

func TestAtomicResponse(t *testing.T) {
	want := bin(t, "01020304 1112131415161718")
	h := rdmap.AtomicResponseHeader{ID: 0x01020304, Original: 0x1112131415161718}
	got := make([]byte, rdmap.AtomicResponseLen)
	if h.Encode(got); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
	if parsed, err := rdmap.ParseAtomicResponse(want); err != nil || parsed != h {
		t.Errorf("parsed %+v, %v", parsed, err)
	}
}

func TestImmediate(t *testing.T) {
	want := bin(t, "0102030405060708")
	got := make([]byte, rdmap.ImmediateLen)
	if rdmap.PutImmediate(got, 0x0102030405060708); !bytes.Equal(got, want) {
		t.Errorf("encoded %x", got)
	}
	if data, err := rdmap.ParseImmediate(want); err != nil || data != 0x0102030405060708 {
		t.Errorf("parsed %#x, %v", data, err)
	}
}

// TestLengths checks that a message longer or shorter than its header is rejected.
func TestLengths(t *testing.T) {
	for n := range 100 {
		b := make([]byte, n)
		for _, test := range []struct {
			want  int
			parse func() error
		}{
			{28, func() error { _, err := rdmap.ParseReadRequest(b); return err }},
			{52, func() error { _, err := rdmap.ParseAtomicRequest(b); return err }},
			{12, func() error { _, err := rdmap.ParseAtomicResponse(b); return err }},
			{8, func() error { _, err := rdmap.ParseImmediate(b); return err }},
			{4, func() error { _, err := rdmap.ParseTerminate(b); return err }},
		} {
			if err := test.parse(); (n == test.want) != (err == nil) || err != nil && err != rdmap.ErrLen {
				t.Errorf("%d bytes, want %d: %v", n, test.want, err)
			}
		}
	}
}

// TestFetchAdd compares FetchAdd with the RFC's definition, bit by bit (RFC 7306 §5.1.1).
func TestFetchAdd(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 10000 {
		old, add, mask := random.Uint64(), random.Uint64(), random.Uint64()&random.Uint64()
		if i%10 == 0 {
			mask = 0
		}
		var want, carry uint64
		for bit := range 64 {
			sum := old>>bit&1 + add>>bit&1 + carry
			want |= sum & 1 << bit
			carry = sum >> 1
			if mask>>bit&1 == 1 {
				carry = 0
			}
		}
		h := rdmap.AtomicRequestHeader{Code: rdmap.FetchAdd, Data: add, Mask: mask}
		if got := h.Apply(old); got != want || mask == 0 && got != old+add {
			t.Fatalf("%#x + %#x mask %#x: %#x, want %#x", old, add, mask, got, want)
		}
	}
}

func TestCmpSwap(t *testing.T) {
	for _, test := range []struct{ old, compare, compareMask, data, mask, want uint64 }{
		{5, 5, ^uint64(0), 9, ^uint64(0), 9},
		{5, 6, ^uint64(0), 9, ^uint64(0), 5},
		{5, 6, 0, 9, ^uint64(0), 9}, // a swap
		{0x1234, 0xff34, 0xff, 0xabcd, 0xff00, 0xab34},
		{0x1234, 0xff35, 0xff, 0xabcd, 0xff00, 0x1234},
	} {
		h := rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: test.data, Mask: test.mask,
			CompareData: test.compare, CompareMask: test.compareMask}
		if got := h.Apply(test.old); got != test.want {
			t.Errorf("%+v: %#x", test, got)
		}
	}
}

// TestCauses checks the codes of RFC 5040 figure 9, RFC 5041 §7.2, RFC 5044 §8 and RFC 6581 §8.
// Each has a name of its own.
func TestCauses(t *testing.T) {
	seen := make(map[string]bool)
	for _, test := range []struct {
		err              error
		layer, kind, num uint8
	}{
		{rdmap.LocalCatastrophic, 0, 0, 0},
		{rdmap.InvalidSTag, 0, 1, 0},
		{rdmap.BoundsViolation, 0, 1, 1},
		{rdmap.AccessViolation, 0, 1, 2},
		{rdmap.STagNotAssociated, 0, 1, 3},
		{rdmap.TOWrap, 0, 1, 4},
		{rdmap.CannotInvalidate, 0, 1, 9},
		{rdmap.ProtectionError, 0, 1, 0xff},
		{rdmap.InvalidVersion, 0, 2, 5},
		{rdmap.UnexpectedOpcode, 0, 2, 6},
		{rdmap.StreamCatastrophic, 0, 2, 7},
		{rdmap.GlobalCatastrophic, 0, 2, 8},
		{rdmap.InvalidateOperation, 0, 2, 9},
		{rdmap.OperationError, 0, 2, 0xff},
		{ddp.ErrLocalCatastrophic, 1, 0, 0},
		{ddp.ErrInvalidSTag, 1, 1, 0},
		{ddp.ErrTaggedVersion, 1, 1, 4},
		{ddp.ErrInvalidQN, 1, 2, 1},
		{ddp.ErrUntaggedVersion, 1, 2, 6},
		{mpa.ErrClosed, 2, 0, 1},
		{mpa.ErrCRC, 2, 0, 2},
		{mpa.ErrMarker, 2, 0, 3},
		{mpa.ErrKey, 2, 0, 4},
		{mpa.ErrLocalCatastrophic, 2, 0, 5},
		{mpa.ErrInsufficientIRD, 2, 0, 6},
		{mpa.ErrNoMatchingRTR, 2, 0, 7},
	} {
		want := rdmap.Cause{Layer: rdmap.Layer(test.layer), Type: test.kind, Code: test.num}
		c, ok := rdmap.CauseOf(fmt.Errorf("wrapped: %w", test.err))
		if !ok || c != want {
			t.Errorf("%v: %+v, want %+v", test.err, c, want)
		}
		if name := c.String(); seen[name] || strings.Contains(name, "0x") {
			t.Errorf("%+v is called %q", c, name)
		} else {
			seen[name] = true
		}
	}
	if c, ok := rdmap.CauseOf(rdmap.ErrLen); !ok || c != rdmap.StreamCatastrophic {
		t.Errorf("ErrLen: %v, %v", c, ok)
	}
	if c, ok := rdmap.CauseOf(errors.New("other")); ok || c != rdmap.LocalCatastrophic {
		t.Errorf("another error: %v, %v", c, ok)
	}
	for _, c := range []rdmap.Cause{{Layer: 3}, {Layer: 2, Type: 1}, {Layer: 0, Type: 3}, {Layer: 0, Type: 1, Code: 5}} {
		if name := c.String(); !strings.Contains(name, "0x") {
			t.Errorf("%+v, which no RFC defines, is called %q", c, name)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(make([]byte, 28))
	f.Add(bytes.Repeat([]byte{0xfe}, 52))
	f.Add(make([]byte, 12))
	f.Add(make([]byte, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := make([]byte, len(b))
		check := func(err error, encode func([]byte)) {
			if err != nil {
				return
			}
			encode(again)
			if !bytes.Equal(again, b) {
				t.Fatalf("%x became %x", b, again)
			}
		}
		read, err := rdmap.ParseReadRequest(b)
		check(err, read.Encode)
		request, err := rdmap.ParseAtomicRequest(b)
		check(err, request.Encode)
		response, err := rdmap.ParseAtomicResponse(b)
		check(err, response.Encode)
		immediate, err := rdmap.ParseImmediate(b)
		check(err, func(b []byte) { rdmap.PutImmediate(b, immediate) })
	})
}

func BenchmarkMessages(b *testing.B) {
	buf := make([]byte, rdmap.AtomicRequestLen)
	var read rdmap.ReadRequestHeader
	var atomic rdmap.AtomicRequestHeader
	b.ReportAllocs()
	for b.Loop() {
		read.Encode(buf)
		if _, err := rdmap.ParseReadRequest(buf[:rdmap.ReadRequestLen]); err != nil {
			b.Fatal(err)
		}
		atomic.Encode(buf)
		if _, err := rdmap.ParseAtomicRequest(buf); err != nil {
			b.Fatal(err)
		}
	}
}
