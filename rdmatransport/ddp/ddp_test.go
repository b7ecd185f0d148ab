package ddp_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
)

func bin(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTagged(t *testing.T) {
	want := bin(t, "c1 40 01020304 1112131415161718")
	h := ddp.Tagged{Last: true, RsvdULP: 0x40, STag: 0x01020304, TO: 0x1112131415161718}
	got := make([]byte, ddp.TaggedLen)
	if h.Encode(got); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
	parsed, payload, err := ddp.ParseTagged(append(want, "data"...))
	if err != nil || parsed != h || string(payload) != "data" || !ddp.IsTagged(want) || ddp.HeaderLen(want) != ddp.TaggedLen {
		t.Errorf("parsed %+v, %q, %v", parsed, payload, err)
	}
}

func TestUntagged(t *testing.T) {
	want := bin(t, "01 44 a1a2a3a4 00000001 00000002 00000003")
	h := ddp.Untagged{RsvdULP: 0x44, Invalidate: 0xa1a2a3a4, QN: 1, MSN: 2, MO: 3}
	got := make([]byte, ddp.UntaggedLen)
	if h.Encode(got); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
	parsed, payload, err := ddp.ParseUntagged(append(want, "data"...))
	if err != nil || parsed != h || string(payload) != "data" || ddp.IsTagged(want) || ddp.HeaderLen(want) != ddp.UntaggedLen {
		t.Errorf("parsed %+v, %q, %v", parsed, payload, err)
	}
}

// TestReservedBits checks that reserved bits are sent as 0 by default, and ignored when received.
func TestReservedBits(t *testing.T) {
	tagged, _, err := ddp.ParseTagged(append([]byte{0xfd}, make([]byte, 13)...))
	if err != nil || tagged.Reserved != 0xf || !tagged.Last {
		t.Errorf("tagged: %+v, %v", tagged, err)
	}
	untagged, _, err := ddp.ParseUntagged(append([]byte{0x3d}, make([]byte, 17)...))
	if err != nil || untagged.Reserved != 0xf || untagged.Last {
		t.Errorf("untagged: %+v, %v", untagged, err)
	}
}

func TestVersion(t *testing.T) {
	for _, version := range []byte{0, 2, 3} {
		if _, _, err := ddp.ParseTagged(append([]byte{0xc0 | version}, make([]byte, 13)...)); err != ddp.ErrTaggedVersion {
			t.Errorf("tagged, version %d: %v", version, err)
		}
		if _, _, err := ddp.ParseUntagged(append([]byte{0x40 | version}, make([]byte, 17)...)); err != ddp.ErrUntaggedVersion {
			t.Errorf("untagged, version %d: %v", version, err)
		}
	}
}

// TestShort checks that a segment shorter than its header is an error, 0 bytes included.
func TestShort(t *testing.T) {
	for n := range ddp.UntaggedLen {
		b := bytes.Repeat([]byte{0x41}, n)
		if _, _, err := ddp.ParseUntagged(b); err != ddp.ErrShort {
			t.Errorf("untagged, %d bytes: %v", n, err)
		}
		if n >= ddp.TaggedLen {
			continue
		}
		b = bytes.Repeat([]byte{0xc1}, n)
		if _, _, err := ddp.ParseTagged(b); err != ddp.ErrShort {
			t.Errorf("tagged, %d bytes: %v", n, err)
		}
	}
	if ddp.IsTagged(nil) {
		t.Error("an empty segment is tagged")
	}
}

func TestTOWrap(t *testing.T) {
	for _, test := range []struct {
		to   uint64
		n    int
		want error
	}{
		{0, 0, nil}, {math.MaxUint64, 0, nil}, {math.MaxUint64 - 9, 9, nil},
		{math.MaxUint64, 1, ddp.ErrTOWrap}, {math.MaxUint64 - 9, 65535, ddp.ErrTOWrap},
	} {
		if err := ddp.CheckTO(test.to, test.n); err != test.want {
			t.Errorf("%d bytes at %#x: %v, want %v", test.n, test.to, err, test.want)
		}
	}
}

// TestSegmentExamples checks the example of RFC 5041 §5.2.
func TestSegmentExamples(t *testing.T) {
	for _, test := range []struct {
		header, first, second int
	}{{ddp.UntaggedLen, 1482, 566}, {ddp.TaggedLen, 1486, 562}} {
		n, last := ddp.Segment(2048, 0, test.header, 1500)
		if n != test.first || last {
			t.Errorf("first segment: %d bytes, last %v", n, last)
		}
		n, last = ddp.Segment(2048, uint32(n), test.header, 1500)
		if n != test.second || !last {
			t.Errorf("second segment: %d bytes, last %v", n, last)
		}
	}
}

// TestSegments checks that a whole message is cut, into segments within the MULPDU of which only
// one has the L bit.
func TestSegments(t *testing.T) {
	for _, header := range []int{ddp.TaggedLen, ddp.UntaggedLen} {
		for _, mulpdu := range []int{header + 1, 128, 1442, 64768} {
			for _, size := range []uint32{0, 1, 109, 110, 111, 113, 114, 115, 65536, math.MaxUint32 - 1, math.MaxUint32} {
				if uint64(size)/uint64(mulpdu-header) > 1<<20 {
					continue
				}
				var off, count uint64
				done := false
				for !done {
					var n int
					n, done = ddp.Segment(size, uint32(off), header, mulpdu)
					if n+header > mulpdu || n == 0 && size != 0 {
						t.Fatalf("size %d, MULPDU %d: segment of %d bytes", size, mulpdu, n)
					}
					off += uint64(n)
					count++
				}
				room := uint64(mulpdu - header)
				if want := max((uint64(size)+room-1)/room, 1); off != uint64(size) || count != want {
					t.Errorf("size %d, MULPDU %d: %d bytes in %d segments, want %d", size, mulpdu, off, count, want)
				}
			}
		}
	}
}

// TestQueue checks that a queue accepts segments in order only.
func TestQueue(t *testing.T) {
	var q ddp.Queue
	for i, step := range []struct {
		msn, mo uint32
		n       int
		last    bool
		first   bool
		want    error
	}{
		{msn: 0, want: ddp.ErrMSNRange},
		{msn: 2, want: ddp.ErrMSNRange},
		{msn: 1, mo: 4, want: ddp.ErrInvalidMO},
		{msn: 1, n: 10, first: true},
		{msn: 1, n: 10, want: ddp.ErrInvalidMO}, // again
		{msn: 1, mo: 9, n: 1, want: ddp.ErrInvalidMO},
		{msn: 1, mo: 11, n: 1, want: ddp.ErrInvalidMO},
		{msn: 2, n: 10, want: ddp.ErrMSNRange}, // before the first is complete
		{msn: 1, mo: 10, n: 5, last: true},
		{msn: 1, mo: 15, last: true, want: ddp.ErrMSNRange},
		{msn: 2, last: true, first: true}, // empty
		{msn: 3, first: true},             // an empty segment that is not the last
		{msn: 3, last: true},
		{msn: 4, last: true, first: true},
	} {
		h := ddp.Untagged{MSN: step.msn, MO: step.mo, Last: step.last}
		first, err := q.Accept(&h, step.n)
		if err != step.want || first != step.first {
			t.Fatalf("step %d: first %v, %v; want %v, %v", i, first, err, step.first, step.want)
		}
	}
	if q.MSN() != 5 {
		t.Errorf("expects MSN %d, want 5", q.MSN())
	}
}

// TestQueueTooLong checks that a message is rejected if its offset would overflow.
func TestQueueTooLong(t *testing.T) {
	var q ddp.Queue
	const n = 1 << 16
	for off := uint64(0); ; off += n {
		h := ddp.Untagged{MSN: 1, MO: uint32(off)}
		_, err := q.Accept(&h, n)
		if off+n > math.MaxUint32 {
			if err != ddp.ErrTooLong {
				t.Fatalf("offset %d: %v, want ErrTooLong", off, err)
			}
			return
		}
		if err != nil {
			t.Fatalf("offset %d: %v", off, err)
		}
	}
}

// TestMSNWraps checks that the MSN wraps to 0 after 2^32-1 (RFC 5041 §4.3).
func TestMSNWraps(t *testing.T) {
	q := ddp.QueueAt(math.MaxUint32)
	for _, msn := range []uint32{math.MaxUint32, 0, 1} {
		if q.MSN() != msn {
			t.Fatalf("expects MSN %d, want %d", q.MSN(), msn)
		}
		if _, err := q.Accept(&ddp.Untagged{MSN: msn, Last: true}, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNumbers checks the names of the errors of RFC 5041 §7.2.
func TestNumbers(t *testing.T) {
	for _, test := range []struct {
		err  *ddp.Error
		want ddp.Error
		name string
	}{
		{ddp.ErrLocalCatastrophic, ddp.Error{Type: 0, Code: 0}, "local catastrophic"},
		{ddp.ErrInvalidSTag, ddp.Error{Type: 1, Code: 0}, "tagged buffer error: invalid STag"},
		{ddp.ErrBounds, ddp.Error{Type: 1, Code: 1}, "tagged buffer error: base or bounds violation"},
		{ddp.ErrSTagNotAssociated, ddp.Error{Type: 1, Code: 2}, "tagged buffer error: STag not associated with the stream"},
		{ddp.ErrTOWrap, ddp.Error{Type: 1, Code: 3}, "tagged buffer error: TO wraps"},
		{ddp.ErrTaggedVersion, ddp.Error{Type: 1, Code: 4}, "tagged buffer error: invalid DDP version"},
		{ddp.ErrInvalidQN, ddp.Error{Type: 2, Code: 1}, "untagged buffer error: invalid QN"},
		{ddp.ErrNoBuffer, ddp.Error{Type: 2, Code: 2}, "untagged buffer error: no buffer for the MSN"},
		{ddp.ErrMSNRange, ddp.Error{Type: 2, Code: 3}, "untagged buffer error: MSN out of range"},
		{ddp.ErrInvalidMO, ddp.Error{Type: 2, Code: 4}, "untagged buffer error: invalid MO"},
		{ddp.ErrTooLong, ddp.Error{Type: 2, Code: 5}, "untagged buffer error: message too long for its buffer"},
		{ddp.ErrUntaggedVersion, ddp.Error{Type: 2, Code: 6}, "untagged buffer error: invalid DDP version"},
		{&ddp.Error{Type: 2, Code: 0}, ddp.Error{Type: 2, Code: 0}, "untagged buffer error: code 0x0"},
		{&ddp.Error{Type: 9, Code: 7}, ddp.Error{Type: 9, Code: 7}, "DDP error type 0x9: code 0x7"},
	} {
		if *test.err != test.want || test.err.String() != test.name || !errors.Is(test.err, &test.want) {
			t.Errorf("%+v %q, want %+v %q", *test.err, test.err, test.want, test.name)
		}
	}
}

func FuzzSegment(f *testing.F) {
	f.Add(bin(f, "c1 40 01020304 1112131415161718"))
	f.Add(bin(f, "7d 44 a1a2a3a4 00000001 00000002 00000003 ff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again, payload []byte
		if ddp.IsTagged(b) {
			h, p, err := ddp.ParseTagged(b)
			if err != nil {
				return
			}
			again, payload = make([]byte, ddp.TaggedLen), p
			h.Encode(again)
		} else {
			h, p, err := ddp.ParseUntagged(b)
			if err != nil {
				return
			}
			again, payload = make([]byte, ddp.UntaggedLen), p
			h.Encode(again)
			var q ddp.Queue
			_, _ = q.Accept(&h, len(p))
		}
		if !bytes.Equal(append(again, payload...), b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

func BenchmarkHeaders(b *testing.B) {
	buf := make([]byte, ddp.UntaggedLen)
	var q ddp.Queue
	h := ddp.Untagged{Last: true, RsvdULP: 0x43}
	b.ReportAllocs()
	for b.Loop() {
		h.MSN = q.MSN()
		h.Encode(buf)
		got, _, err := ddp.ParseUntagged(buf)
		if err == nil {
			_, err = q.Accept(&got, 0)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
