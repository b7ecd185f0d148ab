package mpa_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

// collector keeps copies of the ULPDUs that it gets.
type collector struct {
	ulpdus [][]byte
	fail   error
}

func (c *collector) ULPDU(b []byte) error {
	c.ulpdus = append(c.ulpdus, bytes.Clone(b))
	return c.fail
}

var configs = []mpa.Config{{}, {CRC: true}, {Markers: true}, {Markers: true, CRC: true}}

// frame appends the FPDU of ulpdu to stream.
func frame(t testing.TB, s *mpa.Sender, stream, ulpdu []byte) []byte {
	size := s.Size(len(ulpdu))
	// The FPDU must overwrite the buffer's old content, and nothing after the FPDU.
	room := bytes.Repeat([]byte{0xa5}, size+8)
	s.Begin(room[:size], len(ulpdu))
	header := min(len(ulpdu), 14)
	s.Add(ulpdu[:header])
	s.Add(ulpdu[header:])
	s.End()
	if string(room[size:]) != strings.Repeat("\xa5", 8) {
		t.Fatal("written after the FPDU")
	}
	return append(stream, room[:size]...)
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// reference builds the stream of ulpdus byte by byte, as RFC 5044 §4 specifies it.
func reference(c mpa.Config, ulpdus [][]byte) (stream []byte) {
	for _, u := range ulpdus {
		content := binary.BigEndian.AppendUint16(nil, uint16(len(u)))
		content = append(content, u...)
		for len(content)%4 != 0 {
			content = append(content, 0)
		}
		begin, start := len(stream), -1
		for i := 0; i <= len(content); i += 4 {
			if c.Markers && len(stream)%512 == 0 {
				distance := 0
				if start >= 0 {
					distance = len(stream) - start
				}
				stream = binary.BigEndian.AppendUint32(stream, uint32(distance))
			}
			if start < 0 {
				start = len(stream)
			}
			if i < len(content) {
				stream = append(stream, content[i:i+4]...)
			}
		}
		sum := uint32(0)
		if c.CRC {
			sum = crc32.Checksum(stream[begin:], crc32.MakeTable(crc32.Castagnoli))
		}
		stream = binary.LittleEndian.AppendUint32(stream, sum)
	}
	return stream
}

// TestExamples checks the two annotated dumps of RFC 5044 §4.4, with their CRCs.
func TestExamples(t *testing.T) {
	send := func(msn byte, n int) []byte {
		u := make([]byte, 18+n)
		u[0], u[1], u[13] = 0x41, 0x43, msn
		return u
	}
	c := mpa.Config{Markers: true, CRC: true}

	s := mpa.NewSender(c)
	got := frame(t, &s, nil, send(1, 24))
	want, _ := hex.DecodeString("00000000" + "002a4143" + "00000000" + "00000000" + "00000001" + "00000000" +
		strings.Repeat("00", 24) + "52239983")
	if !bytes.Equal(got, want) {
		t.Errorf("first FPDU of a stream\n %x, want\n %x", got, want)
	}

	s = mpa.NewSender(c)
	// 492 octets in the stream, including the marker.
	stream := frame(t, &s, nil, send(1, 492-4-2-18-4))
	if len(stream) != 0x1ec {
		t.Fatalf("first FPDU has %#x octets, want 0x1ec", len(stream))
	}
	got = frame(t, &s, nil, send(2, 24))
	want, _ = hex.DecodeString("002a4143" + "00000000" + "00000000" + "00000002" + "00000000" + "00000014" +
		strings.Repeat("00", 24) + "84925898")
	if !bytes.Equal(got, want) {
		t.Errorf("FPDU with a marker\n %x, want\n %x", got, want)
	}

	var h collector
	r := mpa.NewReceiver(c)
	if err := r.Feed(append(stream, got...), &h); err != nil || len(h.ulpdus) != 2 || !bytes.Equal(h.ulpdus[1], send(2, 24)) {
		t.Errorf("received %d ULPDUs, %v", len(h.ulpdus), err)
	}
}

// TestFormat compares FPDUs with reference, for every length and with a marker at every position.
func TestFormat(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range configs {
		for n := range 1100 {
			// The first FPDU moves the second to each multiple of 4 after a marker in turn.
			ulpdus := [][]byte{noise(random, 4*(n%130)+n/130), noise(random, n), noise(random, n%7)}
			s := mpa.NewSender(c)
			var stream []byte
			for _, u := range ulpdus {
				stream = frame(t, &s, stream, u)
			}
			if want := reference(c, ulpdus); !bytes.Equal(stream, want) {
				t.Fatalf("%+v, ULPDUs of %d, %d, %d bytes:\n %x, want\n %x", c, len(ulpdus[0]), n, n%7, stream, want)
			}
		}
	}
}

// TestLargest checks the largest ULPDUs that the RFC allows, and the largest that the length field
// can express.
func TestLargest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range configs {
		ulpdus := [][]byte{noise(random, mpa.MaxMULPDU), noise(random, 10), noise(random, mpa.MaxMULPDU)}
		if !c.Markers { // beyond 64768 a marker's pointer would overflow
			ulpdus = append(ulpdus, noise(random, 65535))
		}
		stream := reference(c, ulpdus)
		s := mpa.NewSender(c)
		var got []byte
		for _, u := range ulpdus {
			got = frame(t, &s, got, u)
		}
		if !bytes.Equal(got, stream) {
			t.Errorf("%+v: wrong stream", c)
		}
		receive(t, c, stream, ulpdus, func() int { return 1 + random.IntN(100000) })
	}
}

// receive feeds the stream in pieces whose sizes next returns, and expects the ulpdus.
func receive(t *testing.T, c mpa.Config, stream []byte, ulpdus [][]byte, next func() int) {
	t.Helper()
	var h collector
	r := mpa.NewReceiver(c)
	for len(stream) > 0 {
		n := min(next(), len(stream))
		if err := r.Feed(bytes.Clone(stream[:n]), &h); err != nil {
			t.Fatalf("%+v: %v after %d ULPDUs", c, err, len(h.ulpdus))
		}
		stream = stream[n:]
	}
	if r.Pending() != 0 {
		t.Fatalf("%d bytes left", r.Pending())
	}
	if len(h.ulpdus) != len(ulpdus) {
		t.Fatalf("%d ULPDUs, want %d", len(h.ulpdus), len(ulpdus))
	}
	for i := range ulpdus {
		if !bytes.Equal(h.ulpdus[i], ulpdus[i]) {
			t.Fatalf("ULPDU %d of %d bytes is wrong", i, len(ulpdus[i]))
		}
	}
}

// TestCuts checks that the same ULPDUs arrive, however TCP cuts the stream.
func TestCuts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range configs {
		var ulpdus [][]byte
		for _, n := range []int{0, 0, 1, 14, 18, 500, 511, 0, 1430, 3, 4096, 2, 700} {
			ulpdus = append(ulpdus, noise(random, n))
		}
		stream := reference(c, ulpdus)
		receive(t, c, stream, ulpdus, func() int { return len(stream) })
		receive(t, c, stream, ulpdus, func() int { return 1 })
		for range 200 {
			receive(t, c, stream, ulpdus, func() int { return 1 + random.IntN(600) })
		}
		for at := 1; at < len(stream); at++ { // two pieces
			first := at
			receive(t, c, stream, ulpdus, func() int {
				n := first
				first = len(stream)
				return n
			})
		}
	}
}

// TestInPlace checks that a ULPDU that arrived in one piece is passed on without a copy.
func TestInPlace(t *testing.T) {
	for _, c := range configs {
		ulpdu := bytes.Repeat([]byte{7}, 400)
		stream := reference(c, [][]byte{ulpdu})
		at := bytes.Index(stream, ulpdu)
		r := mpa.NewReceiver(c)
		if err := r.Feed(stream, handler(func(b []byte) error {
			if &b[0] != &stream[at] {
				t.Errorf("%+v: copied", c)
			}
			return nil
		})); err != nil {
			t.Error(err)
		}
	}
}

type handler func(b []byte) error

func (f handler) ULPDU(b []byte) error { return f(b) }

// TestWrongCRC flips each bit of an FPDU. None passes unnoticed, unless the FPDU becomes longer
// than the received bytes.
func TestWrongCRC(t *testing.T) {
	for _, c := range configs[1:] {
		if !c.CRC {
			continue
		}
		stream := reference(c, [][]byte{bytes.Repeat([]byte{7}, 600)})
		length := 0
		if c.Markers {
			length = 4
		}
		for bit := range len(stream) * 8 {
			b := bytes.Clone(stream)
			b[bit/8] ^= 1 << (bit % 8)
			var h collector
			r := mpa.NewReceiver(c)
			err := r.Feed(b, &h)
			if len(h.ulpdus) != 0 {
				t.Fatalf("bit %d: accepted", bit)
			}
			if waits := bit/8 == length || bit/8 == length+1; !waits && err != mpa.ErrCRC {
				t.Fatalf("bit %d: %v", bit, err)
			}
		}
	}
}

// TestUncheckedCRC checks that the CRC field may have any value if CRCs were not negotiated (RFC
// 5044 §4.1).
func TestUncheckedCRC(t *testing.T) {
	stream := reference(mpa.Config{}, [][]byte{{1, 2, 3}})
	copy(stream[len(stream)-4:], "any!")
	receive(t, mpa.Config{}, stream, [][]byte{{1, 2, 3}}, func() int { return 5 })
}

// TestIgnored checks that the pad, reserved marker bits and the low bits of FPDUPTR only matter to
// the CRC.
func TestIgnored(t *testing.T) {
	ulpdu := bytes.Repeat([]byte{7}, 601)
	c := mpa.Config{Markers: true, CRC: true}
	stream := reference(c, [][]byte{ulpdu})
	stream[0], stream[3] = 0xff, 3
	stream[512], stream[515] = 0xff, stream[515]|3
	stream[len(stream)-5] = 9
	binary.LittleEndian.PutUint32(stream[len(stream)-4:], crc32.Checksum(stream[:len(stream)-4], crc32.MakeTable(crc32.Castagnoli)))
	receive(t, c, stream, [][]byte{ulpdu}, func() int { return len(stream) })
}

// TestWrongMarker checks that a wrong marker pointer under a valid CRC is an error, and that no
// ULPDU follows an error.
func TestWrongMarker(t *testing.T) {
	ulpdus := [][]byte{{1}, bytes.Repeat([]byte{7}, 1200), {2}}
	for _, c := range []mpa.Config{{Markers: true}, {Markers: true, CRC: true}} {
		good := reference(c, ulpdus)
		first := len(reference(c, ulpdus[:1]))
		second := len(reference(c, ulpdus[:2]))
		for at := 0; at < second; at += 512 {
			for _, wrong := range []uint16{0, 4, 0x100, 0xfffc} {
				b := bytes.Clone(good)
				if binary.BigEndian.Uint16(b[at+2:]) == wrong {
					continue
				}
				binary.BigEndian.PutUint16(b[at+2:], wrong)
				if c.CRC {
					begin, end := 0, first
					if at > 0 {
						begin, end = first, second
					}
					binary.LittleEndian.PutUint32(b[end-4:], crc32.Checksum(b[begin:end-4], crc32.MakeTable(crc32.Castagnoli)))
				}
				var h collector
				r := mpa.NewReceiver(c)
				for i := range b {
					if err := r.Feed(b[i:i+1], &h); err != nil {
						break
					}
				}
				if err := r.Feed(good, &h); err != mpa.ErrMarker {
					t.Errorf("marker at %d with %#x: %v", at, wrong, err)
				}
				if want := min(at, 1); len(h.ulpdus) != want {
					t.Errorf("marker at %d wrong: %d ULPDUs, want %d", at, len(h.ulpdus), want)
				}
			}
		}
	}
}

// TestHandlerError checks that the handler's error is returned by this and all later calls, and
// that no more ULPDUs are passed on.
func TestHandlerError(t *testing.T) {
	stop := errors.New("stop")
	h := collector{fail: stop}
	r := mpa.NewReceiver(mpa.Config{})
	stream := reference(mpa.Config{}, [][]byte{{1}, {2}})
	for range 3 {
		if err := r.Feed(stream, &h); err != stop {
			t.Fatalf("error %v, want the handler's", err)
		}
	}
	if len(h.ulpdus) != 1 {
		t.Errorf("%d ULPDUs, want 1", len(h.ulpdus))
	}
}

// TestClaims checks that the Receiver allocates for received bytes rather than for announced ones.
// Release frees its memory while the stream is idle.
func TestClaims(t *testing.T) {
	r := mpa.NewReceiver(mpa.Config{CRC: true})
	if err := r.Feed([]byte{0xff, 0xff, 1, 2, 3}, &collector{}); err != nil {
		t.Fatal(err)
	}
	if r.Pending() != 5 || r.Held() > 64 {
		t.Errorf("pending %d, held %d bytes for 5", r.Pending(), r.Held())
	}
	if r.Release(); r.Pending() != 5 {
		t.Error("Release dropped bytes of an FPDU")
	}

	stream := reference(mpa.Config{CRC: true}, [][]byte{make([]byte, 60000)})
	r = mpa.NewReceiver(mpa.Config{CRC: true})
	for _, b := range [][]byte{stream[:30000], stream[30000:]} {
		if err := r.Feed(b, &collector{}); err != nil {
			t.Fatal(err)
		}
	}
	if r.Held() < 60000 || r.Held() > 67000 {
		t.Errorf("holds %d bytes of memory after an FPDU of 60000", r.Held())
	}
	if r.Release(); r.Held() != 0 {
		t.Errorf("holds %d bytes after Release", r.Held())
	}
}

// TestMaxULPDU checks the results of RFC 5044 §4.5 at its bounds. An FPDU of that size fits into
// the segment wherever its markers are.
func TestMaxULPDU(t *testing.T) {
	markers, none := mpa.Config{Markers: true}, mpa.Config{}
	for _, test := range []struct {
		c          mpa.Config
		emss, want int
	}{
		{none, 1460, 1454}, {none, 1448, 1442}, {none, 1461, 1454}, {none, 1463, 1454},
		{markers, 1460, 1442}, {markers, 1536, 1518}, {markers, 1540, 1518}, {markers, 1463, 1442},
		{none, 100, 128}, {markers, 0, 128}, {none, -5, 128}, {none, 1 << 20, 64768}, {markers, 65536, 64768},
		{none, 65535, 64768},
	} {
		if got := test.c.MaxULPDU(test.emss); got != test.want {
			t.Errorf("%+v EMSS %d: %d, want %d", test.c, test.emss, got, test.want)
		}
	}
	for _, c := range configs {
		for emss := 160; emss < 3000; emss++ {
			s := mpa.NewSender(c)
			for range 130 { // every position after a marker
				if n := s.Size(c.MaxULPDU(emss)); n > emss {
					t.Fatalf("%+v EMSS %d: MULPDU %d takes %d bytes", c, emss, c.MaxULPDU(emss), n)
				}
				s.Begin(make([]byte, s.Size(2)), 2)
				s.Add(make([]byte, 2))
				s.End()
			}
		}
	}
}

func FuzzReceiver(f *testing.F) {
	for i, c := range configs {
		f.Add(uint8(i), uint16(3), reference(c, [][]byte{{}, {1}, make([]byte, 700)}))
	}
	f.Add(uint8(0), uint16(1), []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, which uint8, chunk uint16, stream []byte) {
		c := configs[which%4]
		read := func(chunk int) ([][]byte, int, error) {
			var h collector
			r := mpa.NewReceiver(c)
			var err error
			for b := stream; len(b) > 0 && err == nil; {
				n := min(chunk, len(b))
				err = r.Feed(b[:n:n], &h)
				b = b[n:]
			}
			return h.ulpdus, r.Pending(), err
		}
		ulpdus, pending, err := read(max(len(stream), 1))
		again, pending2, err2 := read(int(chunk) + 1)
		if err != err2 || len(ulpdus) != len(again) || err == nil && pending != pending2 {
			t.Fatalf("whole: %d ULPDUs, %v, %d left; in pieces: %d, %v, %d", len(ulpdus), err, pending, len(again), err2, pending2)
		}
		s := mpa.NewSender(c)
		var sent []byte
		for i, u := range ulpdus {
			if !bytes.Equal(u, again[i]) {
				t.Fatalf("ULPDU %d differs", i)
			}
			sent = frame(t, &s, sent, u)
		}
		if err == nil && len(sent) != len(stream)-pending {
			t.Fatalf("ULPDUs of %d bytes of stream take %d", len(stream)-pending, len(sent))
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(3), uint64(1), uint16(600), uint8(9))
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, most uint16, count uint8) {
		c := configs[which%4]
		random := rand.New(rand.NewPCG(seed, 0))
		s := mpa.NewSender(c)
		var ulpdus [][]byte
		var stream []byte
		for range count % 16 {
			u := noise(random, random.IntN(min(int(most), mpa.MaxMULPDU)+1))
			ulpdus = append(ulpdus, u)
			stream = frame(t, &s, stream, u)
		}
		receive(t, c, stream, ulpdus, func() int { return 1 + random.IntN(2*int(most)+1) })
	})
}
