package netstack_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// taker takes most bytes at a time.
type taker struct {
	got   []byte
	calls int
	most  int
}

func (k *taker) Take(b []byte) bool {
	k.calls++
	k.got = append(k.got, b...)
	return k.most == 0 || len(k.got) < k.most
}

func TestStreamReceive(t *testing.T) {
	a, b := streams(t, 9000, 9000)
	k := &taker{}
	if err := b.Receive(k); err != nil || k.calls != 0 {
		t.Fatalf("Receive of nothing: %d calls, %v", k.calls, err)
	}
	if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Wait past the deadline: %v", err)
	}
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}

	const pieces, size = 10, 60_000
	var f, want filler
	for range pieces {
		if ok, err := a.Send(size, &f); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	k.most = 1 // a Receive ends with the first piece
	var err error
	for rounds := 0; err == nil; rounds++ {
		if err = b.Wait(); err != nil {
			break
		}
		calls := k.calls
		err = b.Receive(k)
		if k.calls > calls+1 {
			t.Fatalf("the taker was called %d times after it said that it had enough", k.calls-calls-1)
		}
	}
	if err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	expect := make([]byte, pieces*size)
	want.Fill(expect)
	if !bytes.Equal(k.got, expect) {
		t.Errorf("%d bytes arrived, not the %d sent", len(k.got), len(expect))
	}
	b.Abort()
	if err := b.Wait(); err == nil {
		err = b.Receive(k)
		if err == nil {
			t.Error("neither Wait nor Receive fails after Abort")
		}
	}
}

// A stream is crowded from so many pieces on, until its peer is heard from; then it says so.
func TestStreamCrowded(t *testing.T) {
	a, b := streams(t, 9000, 9000)
	room := make(chan struct{}, 1)
	a.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	if !a.Crowded(0) || a.Crowded(1) {
		t.Error("a new stream has sent nothing")
	}
	for {
		if ok, err := a.Send(8, &filler{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if a.Crowded(1) {
			break // else the acknowledgement was quicker
		}
	}
	<-room
	if ok, err := b.Send(8, &filler{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// BenchmarkStreamReceive is a piece's way through both ends.
func BenchmarkStreamReceive(b *testing.B) {
	s, peer := streams(b, 9000, 9000)
	room := make(chan struct{}, 1)
	s.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	const size = stack.MaxPiece
	k := &counter{}
	f := nothing{}
	b.ReportAllocs()
	b.SetBytes(size)
	for b.Loop() {
		if ok, err := s.Send(size, f); !ok || err != nil {
			b.Fatal(ok, err)
		}
		for k.n = 0; k.n < size; {
			if err := peer.Wait(); err != nil {
				b.Fatal(err)
			}
			if err := peer.Receive(k); err != nil {
				b.Fatal(err)
			}
		}
	}
}

type counter struct{ n int }

func (k *counter) Take(b []byte) bool {
	k.n += len(b)
	return true
}

type nothing struct{}

func (nothing) Fill([]byte) {}
