package rpcrdma

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

var headers = []struct {
	name string
	h    Header
	wire string
}{
	{"no chunks", Header{XID: 0x11223344, Version: 1, Credits: 32}, "11223344 00000001 00000020 00000000 00000000 00000000 00000000"},
	{"all chunks", Header{XID: 5, Version: 1, Credits: 1, Type: NoMsg,
		Read:  []ReadSegment{{0, Segment{1, 2, 3}}, {4, Segment{0xffffffff, 6, 0x0102030405060708}}},
		Write: [][]Segment{{{7, 8, 9}, {10, 11, 12}}, {}},
		Reply: []Segment{{13, 14, 15}}},
		"00000005 00000001 00000001 00000001" +
			"00000001 00000000 00000001 00000002 0000000000000003" +
			"00000001 00000004 ffffffff 00000006 0102030405060708 00000000" +
			"00000001 00000002 00000007 00000008 0000000000000009 0000000a 0000000b 000000000000000c" +
			"00000001 00000000 00000000" +
			"00000001 00000001 0000000d 0000000e 000000000000000f"},
	{"version", Header{XID: 1, Version: 1, Credits: 2, Type: Error, Err: ErrVers, Low: 1, High: 1},
		"00000001 00000001 00000002 00000004 00000001 00000001 00000001"},
	{"chunk", Header{XID: 1, Version: 1, Credits: 2, Type: Error, Err: ErrChunk}, "00000001 00000001 00000002 00000004 00000002"},
	{"done", Header{XID: 1, Version: 1, Credits: 2, Type: Done}, "00000001 00000001 00000002 00000003"},
}

func TestHeader(t *testing.T) {
	for _, c := range headers {
		wire := unhex(c.wire)
		if got := c.h.Append(nil); !bytes.Equal(got, wire) || c.h.Len() != len(wire) {
			t.Errorf("%s: is %x, and has length %d", c.name, got, c.h.Len())
		}
		h, n, err := ParseHeader(append(wire, 1, 2, 3))
		if err != nil || n != len(wire) || !reflect.DeepEqual(*h, c.h) {
			t.Errorf("%s: parsed as %+v, %d bytes, %v", c.name, h, n, err)
		}
		for i := range wire { // no part of it is valid
			if _, _, err := ParseHeader(wire[:i]); !errors.Is(err, errShort) {
				t.Errorf("%s: %d bytes: %v", c.name, i, err)
			}
		}
	}
}

func TestHeaderRefused(t *testing.T) {
	many := Header{Version: 1, Read: make([]ReadSegment, maxSegments+1)}
	both := Header{Version: 1, Read: make([]ReadSegment, maxSegments), Reply: make([]Segment, 1)}
	lists := Header{Version: 1, Write: make([][]Segment, maxSegments+1)}
	for _, c := range []struct {
		wire []byte
		want error
	}{
		{unhex("00000001 00000002 00000002 00000000 00000000 00000000 00000000"), errVersion},
		{unhex("00000001 00000001 00000002 00000002 00000000 00000000 00000000"), errMsgType},
		{unhex("00000001 00000001 00000002 00000005"), errMsgType},
		{unhex("00000001 00000001 00000002 00000000 00000002 00000000 00000000"), errItem},
		{unhex("00000001 00000001 00000002 00000004 00000003"), errErrCode},
		{unhex("00000001 00000001 00000002 00000000 00000000 00000001 ffffffff 00000000"), errSegments},
		{many.Append(nil), errSegments}, {both.Append(nil), errSegments}, {lists.Append(nil), errSegments},
	} {
		if h, _, err := ParseHeader(c.wire); !errors.Is(err, c.want) || h.XID > 1 {
			t.Errorf("%.40x: %v, want %v", c.wire, err, c.want)
		}
	}
}

// FuzzHeader: a header that is parsed has the bytes that it was parsed from.
func FuzzHeader(f *testing.F) {
	for _, c := range headers {
		f.Add(unhex(c.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseHeader(b)
		if err != nil {
			return
		}
		if again := h.Append(nil); !bytes.Equal(again, b[:n]) || h.Len() != n {
			t.Errorf("%x became %x, of length %d", b[:n], again, h.Len())
		}
	})
}

func TestPrivate(t *testing.T) {
	p := private{invalidate: true, send: 4096, recv: 65536}
	if got := p.bytes(); !bytes.Equal(got, unhex("f6ab0e18 01 01 03 3f")) {
		t.Errorf("is %x", got)
	}
	for wire, want := range map[string]private{
		"f6ab0e18 01 01 03 3f":              p,
		"f6ab0e18 01 00 00 ff 00000000":     {send: 1024, recv: maxInline},
		"":                                  absent,
		"f6ab0e18 01 01 03":                 absent,
		"f6ab0e18 02 01 03 3f":              absent,
		"f6ab0e19 01 01 03 3f":              absent,
		"0000000000000000 0000000000000000": absent,
	} {
		if got := parsePrivate(unhex(wire)); got != want {
			t.Errorf("%s: %+v", wire, got)
		}
	}
}
