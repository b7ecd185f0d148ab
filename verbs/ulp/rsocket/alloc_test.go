package rsocket_test

import (
	"io"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// exchange returns a function that writes n bytes in one direction and reads them.
func exchange(t testing.TB, a, b *rsocket.Conn, n int) func() {
	data, got := make([]byte, n), make([]byte, n)
	return func() {
		_, err := a.Write(data)
		ok(t, err)
		_, err = io.ReadFull(b, got)
		ok(t, err)
	}
}

// overPipe connects two sockets within this process.
func overPipe(t testing.TB, transport verbs.Transport) (a, b *rsocket.Conn) {
	lan := new(pipe.Switch)
	to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
	a, b, err := connect(from, to, serverAt, &rsocket.Config{Transport: transport})
	ok(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// Nothing is allocated for a message, in either direction.
func TestNoAllocations(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		a, b := overPipe(t, transport)
		for _, size := range []int{8, 64 << 10} {
			there, back := exchange(t, a, b, size), exchange(t, b, a, size)
			if n := testing.AllocsPerRun(300, func() { there(); back() }); n > 0 {
				t.Errorf("%d bytes there and back: %v allocations", size, n)
			}
		}
	})
}
