package mpa_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

func bin(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	requestKey = "4d504120494420526571204672616d65" // RFC 5044 §7.1.1
	replyKey   = "4d504120494420526570204672616d65"
)

// TestFrames checks that frames encode to these bytes, and that the bytes parse to the frames.
func TestFrames(t *testing.T) {
	for _, test := range []struct {
		f    mpa.Frame
		want string
	}{
		{mpa.Frame{Revision: 1}, requestKey + "0001 0000"},
		{mpa.Frame{Revision: 1, Markers: true, CRC: true, PrivateData: []byte("hi")}, requestKey + "c001 0002 6869"},
		{mpa.Frame{Revision: 1, Reply: true, Rejected: true}, replyKey + "2001 0000"},
		{mpa.Frame{Revision: 1, Reply: true, Reserved: 0x1f}, replyKey + "1f01 0000"},
		{mpa.Frame{Revision: 2, CRC: true, HasEnhanced: true, PrivateData: []byte{9},
			Enhanced: mpa.Enhanced{PeerToPeer: true, IRD: 1, RDMARead: true, ORD: 0x3fff}}, requestKey + "5002 0005 8001 7fff 09"},
		{mpa.Frame{Revision: 2, Reply: true, HasEnhanced: true, Reserved: 4,
			Enhanced: mpa.Enhanced{ZeroLengthSend: true, IRD: 0x3ffe, RDMAWrite: true, ORD: 2}}, replyKey + "1402 0004 7ffe 8002"},
	} {
		want := bin(t, test.want)
		got := make([]byte, test.f.Len())
		if n, err := test.f.Encode(got); err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("%+v: %x, %v, want %x", test.f, got, err, want)
		}
		f, n, err := mpa.Parse(append(want, "more"...))
		again := make([]byte, f.Len())
		if _, err := f.Encode(again); err != nil || !bytes.Equal(again, want) {
			t.Errorf("parsed to %+v, which is %x", f, again)
		}
		if err != nil || n != len(want) || f.Enhanced != test.f.Enhanced || f.Reply != test.f.Reply ||
			!bytes.Equal(f.PrivateData, test.f.PrivateData) {
			t.Errorf("%x: %+v, %d, %v", want, f, n, err)
		}
	}
}

// TestIncremental checks that a reader that follows FrameLen reads no byte after the frame, and
// that an incomplete frame is ErrShort.
func TestIncremental(t *testing.T) {
	f := mpa.Frame{Revision: 2, HasEnhanced: true, PrivateData: []byte("hello")}
	b := make([]byte, f.Len())
	if _, err := f.Encode(b); err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, _, err := mpa.Parse(b[:n]); err != mpa.ErrShort {
			t.Errorf("%d bytes: %v, want ErrShort", n, err)
		}
		length, err := mpa.FrameLen(b[:n])
		if n < mpa.HeaderLen && err != mpa.ErrShort || n >= mpa.HeaderLen && (err != nil || length != len(b)) {
			t.Errorf("%d bytes: length %d, %v", n, length, err)
		}
	}
}

func TestBadFrames(t *testing.T) {
	for _, test := range []struct {
		frame string
		want  error
	}{
		{strings.Replace(requestKey, "4d", "4c", 1) + "0001 0000", mpa.ErrKey},
		{"474554202f20485454502f312e310d0a0d0a0d0a", mpa.ErrKey}, // GET / HTTP/1.1
		{requestKey + "0001 0201", mpa.ErrPrivateData},
		{requestKey + "0001 ffff", mpa.ErrPrivateData},
		{requestKey + "0000 0000", mpa.ErrRevision},
		{requestKey + "0003 0000", mpa.ErrRevision},
		{requestKey + "1002 0003", mpa.ErrEnhanced},
		{replyKey + "1002 0000", mpa.ErrEnhanced},
	} {
		_, _, err := mpa.Parse(bin(t, test.frame))
		if err != test.want || !errors.Is(err, mpa.ErrInvalidFrame) || errors.Is(err, mpa.ErrCRC) {
			t.Errorf("%s: %v, want %v", test.frame, err, test.want)
		}
	}
}

func TestInvalidFramesAreNotEncoded(t *testing.T) {
	big := make([]byte, 1000)
	for _, f := range []mpa.Frame{
		{Revision: 1, PrivateData: make([]byte, 513)},
		{Revision: 2, HasEnhanced: true, PrivateData: make([]byte, 509)},
		{Revision: 1, HasEnhanced: true},
	} {
		if n, err := f.Encode(big); err == nil {
			t.Errorf("%d bytes of private data, revision %d: no error, %d bytes", len(f.PrivateData), f.Revision, n)
		}
	}
	f := mpa.Frame{Revision: 2, HasEnhanced: true, PrivateData: make([]byte, 508)}
	if n, err := f.Encode(big); err != nil || n != mpa.MaxFrameLen {
		t.Errorf("largest frame: %d bytes, %v", n, err)
	}
	if _, err := f.Encode(big[:100]); err == nil {
		t.Error("no error for a buffer that is too short")
	}
}

func TestErrorNames(t *testing.T) {
	for code := range 9 {
		e := &mpa.Error{Code: mpa.Code(code)}
		if known := code >= 1 && code <= 7; known == strings.Contains(e.Error(), "0x") {
			t.Errorf("code %d: %v", code, e)
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(bin(f, requestKey+"5002 0005 8001 7fff 09"))
	f.Add(bin(f, replyKey+"3f01 0002 6869"))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, n, err := mpa.Parse(b)
		if err != nil {
			return
		}
		again := make([]byte, frame.Len())
		if m, err := frame.Encode(again); err != nil || m != n || !bytes.Equal(again, b[:n]) {
			t.Fatalf("%x: %+v: %x, %v", b[:n], frame, again, err)
		}
	})
}
