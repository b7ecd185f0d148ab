package nfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// fragments returns a record of fragments.
func fragments(parts ...string) (b []byte) {
	for i, p := range parts {
		n := uint32(len(p))
		if i == len(parts)-1 {
			n |= lastFragment
		}
		b = append(words(b, n), p...)
	}
	return b
}

func TestRecords(t *testing.T) {
	const limit = 10
	for name, c := range map[string]struct {
		stream []byte
		want   []string
		end    error
	}{
		"one":               {fragments("abc"), []string{"abc"}, io.EOF},
		"fragments":         {append(fragments("ab", "c", "defg"), fragments("hi")...), []string{"abcdefg", "hi"}, io.EOF},
		"empty":             {append(fragments(""), fragments("a", "")...), []string{"", "a"}, io.EOF},
		"the limit":         {fragments("01234", "56789"), []string{"0123456789"}, io.EOF},
		"above it":          {fragments("01234", "567890"), nil, errLongRecord},
		"empty fragment":    {fragments("", "a"), nil, errLongRecord},
		"ends in a mark":    {fragments("abc")[:3], nil, io.ErrUnexpectedEOF},
		"ends in a record":  {fragments("abc", "d")[:7], nil, io.ErrUnexpectedEOF},
		"ends in the next":  {fragments("abc", "d")[:9], nil, io.ErrUnexpectedEOF},
		"ends in a message": {fragments("abc")[:6], nil, io.ErrUnexpectedEOF},
	} {
		for _, r := range []io.Reader{bytes.NewReader(c.stream), iotest.OneByteReader(bytes.NewReader(c.stream)),
			iotest.DataErrReader(bytes.NewReader(c.stream))} {
			in := &recordReader{r: r, limit: limit}
			for _, want := range c.want {
				if got, err := in.read(); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v, not %q", name, got, err, want)
				}
			}
			if got, err := in.read(); !errors.Is(err, c.end) {
				t.Errorf("%s: %q, %v, not %v", name, got, err, c.end)
			}
		}
	}
	in := &recordReader{r: bytes.NewReader(append(fragments("ab", "cdef"), fragments("g")...)), limit: limit}
	ok(t, in.next())
	if b, err := in.rest([]byte("X"), 4); err != nil || string(b) != "Xabc" {
		t.Errorf("the beginning of a record is %q, %v", b, err)
	}
	if b, err := in.read(); err != nil || string(b) != "g" {
		t.Errorf("after it comes %q, %v", b, err)
	}
}

// FuzzRecords: what is read are the fragments' bytes in order, within the limits, in no more memory
// than a limit allows.
func FuzzRecords(f *testing.F) {
	f.Add(append(fragments("ab", "cdef"), fragments("g")...), 100, 5)
	f.Add(fragments("", "x"), 100, 100)
	f.Add(words(nil, lastFragment-1), 1<<20, 1<<20)
	f.Fuzz(func(t *testing.T, stream []byte, limit, part int) {
		limit, part = limit&0xfffff, part&0xfffff
		in := &recordReader{r: bytes.NewReader(stream), limit: limit}
		for at := 0; ; {
			if in.next() != nil {
				return
			}
			b, err := in.rest(nil, part)
			if err != nil {
				return
			}
			var want []byte
			for last := false; !last; {
				n := binary.BigEndian.Uint32(stream[at:])
				last = n&lastFragment != 0
				n &^= lastFragment
				want = append(want, stream[at+4:at+4+int(n)]...)
				at += 4 + int(n)
			}
			if len(want) > limit || !bytes.Equal(b, want[:min(len(want), part)]) || cap(b) > 2*part+64 {
				t.Fatalf("%q of %d bytes, not %q", b, cap(b), want)
			}
		}
	})
}
