package rdmap_test

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// segment returns a DDP segment of op with n bytes after the header.
func segment(op rdmap.Opcode, n int) []byte {
	if op.Info().Tagged {
		h := ddp.Tagged{Last: true, RsvdULP: op.Control(), STag: 7, TO: 8}
		b := make([]byte, ddp.TaggedLen+n)
		h.Encode(b)
		return b
	}
	h := ddp.Untagged{Last: true, RsvdULP: op.Control(), QN: op.Info().Queue, MSN: 1}
	b := make([]byte, ddp.UntaggedLen+n)
	h.Encode(b)
	for i := range n {
		b[ddp.UntaggedLen+i] = byte(i)
	}
	return b
}

// TestQuote checks which headers are quoted for which error (RFC 5040 figure 10).
func TestQuote(t *testing.T) {
	cause := func(err error) rdmap.Cause {
		c, ok := rdmap.CauseOf(err)
		if !ok {
			t.Fatal(err)
		}
		return c
	}
	for _, test := range []struct {
		cause     rdmap.Cause
		segment   []byte
		ddp, read bool
	}{
		{rdmap.LocalCatastrophic, segment(rdmap.Send, 9), false, false},
		{rdmap.InvalidSTag, segment(rdmap.ReadRequest, 28), true, true},
		{rdmap.InvalidSTag, segment(rdmap.ReadRequest, 27), true, false},
		{rdmap.CannotInvalidate, segment(rdmap.SendInvalidate, 28), true, false},
		{rdmap.CannotInvalidate, segment(rdmap.SendSEInvalidate, 0), true, false},
		{rdmap.BoundsViolation, segment(rdmap.AtomicRequest, 52), true, false},
		{rdmap.UnexpectedOpcode, segment(rdmap.ReadRequest, 28), true, false},
		{rdmap.UnexpectedOpcode, segment(rdmap.Write, 5), true, false},
		{cause(ddp.ErrLocalCatastrophic), segment(rdmap.Write, 5), false, false},
		{cause(ddp.ErrBounds), segment(rdmap.Write, 5), true, false},
		{cause(ddp.ErrInvalidSTag), segment(rdmap.ReadResponse, 5), true, false},
		{cause(ddp.ErrNoBuffer), segment(rdmap.Send, 5), true, false},
		{cause(ddp.ErrMSNRange), segment(rdmap.ReadRequest, 28), true, false},
		{cause(mpa.ErrCRC), segment(rdmap.Send, 5), false, false},
		{rdmap.UnexpectedOpcode, nil, false, false},
		{rdmap.UnexpectedOpcode, segment(rdmap.Send, 0)[:17], false, false},
		{rdmap.UnexpectedOpcode, segment(rdmap.Write, 0)[:13], false, false},
	} {
		h := test.cause.Quote(test.segment)
		if h.HasSegmentLen != test.ddp || (h.DDPHeader != nil) != test.ddp || (h.RDMAHeader != nil) != test.read {
			t.Errorf("%v for %x: %+v", test.cause, test.segment, h)
		}
		b := make([]byte, h.Len())
		h.Encode(b)
		flags := byte(0)
		want := []byte{byte(h.Layer)<<4 | h.Type, h.Code, 0, 0}
		if test.ddp {
			flags |= 0xc0
			n := ddp.HeaderLen(test.segment)
			want = append(want, byte(len(test.segment)>>8), byte(len(test.segment)))
			want = append(want, test.segment[:n]...)
			if test.read {
				flags |= 0x20
				want = append(want, test.segment[n:n+28]...)
			}
		}
		if want[2] = flags; !bytes.Equal(b, want) || len(b) > rdmap.MaxTerminateLen {
			t.Errorf("%v for %x:\n %x, want\n %x", test.cause, test.segment, b, want)
		}
		parsed, err := rdmap.ParseTerminate(b)
		if err != nil || parsed.Cause != test.cause || !bytes.Equal(parsed.DDPHeader, h.DDPHeader) ||
			!bytes.Equal(parsed.RDMAHeader, h.RDMAHeader) || parsed.SegmentLen != h.SegmentLen {
			t.Errorf("%x: %+v, %v", b, parsed, err)
		}
	}
}

// TestSwapped parses a Terminate of siw on a little-endian machine, for a SEND with invalidate that
// named a wrong STag. Its bits are in the wrong order, and it announces a Read Request header that
// is missing.
func TestSwapped(t *testing.T) {
	b := append(bin(t, "1000 0700 0012"), segment(rdmap.SendInvalidate, 0)...)
	h, err := rdmap.ParseTerminate(b)
	if err != rdmap.ErrLen || !h.Swapped || h.Cause != rdmap.InvalidSTag || len(h.DDPHeader) != ddp.UntaggedLen {
		t.Errorf("%+v, %v", h, err)
	}
	b[2] = 3
	h, err = rdmap.ParseTerminate(b)
	again := make([]byte, h.Len())
	if h.Encode(again); err != nil || !h.Swapped || h.RDMAHeader != nil || !bytes.Equal(again, b) {
		t.Errorf("%+v, %v, again %x", h, err, again)
	}
}

// TestCutTerminate checks that the cause is parsed even if quoted headers are missing.
func TestCutTerminate(t *testing.T) {
	h := rdmap.AccessViolation.Quote(segment(rdmap.ReadRequest, 28))
	b := make([]byte, h.Len())
	h.Encode(b)
	for n := range b {
		got, err := rdmap.ParseTerminate(b[:n])
		if err != rdmap.ErrLen || n >= rdmap.TerminateLen && got.Cause != rdmap.AccessViolation {
			t.Errorf("%d of %d bytes: %+v, %v", n, len(b), got, err)
		}
	}
}

func FuzzTerminate(f *testing.F) {
	for _, op := range []rdmap.Opcode{rdmap.ReadRequest, rdmap.Write} {
		h := rdmap.AccessViolation.Quote(segment(op, 28))
		b := make([]byte, h.Len())
		h.Encode(b)
		f.Add(b)
	}
	f.Add(append(bin(f, "1000 fbff 0012"), segment(rdmap.SendInvalidate, 0)...))
	f.Add(bin(f, "20021fff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := rdmap.ParseTerminate(b)
		_ = h.String()
		if err != nil {
			return
		}
		again := make([]byte, h.Len())
		if h.Encode(again); !bytes.Equal(again, b) {
			t.Fatalf("%x: %+v: %x", b, h, again)
		}
	})
}
